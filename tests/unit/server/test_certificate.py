"""The certificate of a server: what is wrong with it is said at the start, and a new one is taken up in place."""

from __future__ import annotations

import contextlib
import shutil
import ssl
import threading
import time
from collections.abc import Callable

import pytest

import tunefleet.certificate
from tests.fakes.authority import Authority, Pair
from tunefleet.certificate import Certificate, Facts, opened
from tunefleet.cli import here
from tunefleet.errors import MachineError
from tunefleet.server import launch
from tunefleet.settings import ServerSettings, load


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory, missing: Callable[[str], None]) -> Authority:
    if shutil.which("openssl") is None:
        missing("openssl")
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.sign("server", "127.0.0.1", "fleet.example.org", "*.lab.example.org")


def test_nothing_older_than_tls_1_2_is_spoken(pair: Pair) -> None:
    assert Certificate(pair.cert, pair.key).context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_one_that_expires_soon_is_a_warning(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    certificate = Certificate(pair.cert, pair.key)
    certificate.facts = Facts(("127.0.0.1",), time.time() + 5 * 3600)
    certificate.tell()
    assert "expires in 5 hours" in caplog.text


def test_what_is_not_renewed_is_said_again_and_aloud_once_it_has_expired(
    pair: Pair, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = Certificate(pair.cert, pair.key)
    certificate.tell()
    assert not certificate.refresh()
    assert caplog.text == ""
    monkeypatch.setattr(tunefleet.certificate, "AGAIN_S", 0.0)
    certificate.facts = Facts(("127.0.0.1",), time.time() + 5 * 3600)
    assert not certificate.refresh()
    assert "expires in 5 hours" in caplog.text
    certificate.facts = Facts(("127.0.0.1",), time.time() - 60)
    assert not certificate.refresh()
    assert "Clients will refuse" in caplog.text
    assert "it has expired" in caplog.text


def test_none_is_none() -> None:
    assert opened(None, None) is None


def test_a_fleet_on_one_machine_takes_a_name_that_leads_to_it() -> None:
    both = ("fleet.example.org", "127.0.0.1")
    assert here.name_of(Facts(both), "127.0.0.1") == "127.0.0.1"
    assert here.name_of(Facts(("localhost",)), "127.0.0.1") == "localhost"
    with pytest.raises(MachineError, match=r"is for \*.invalid, and none of that leads to this machine"):
        here.name_of(Facts(("*.invalid",)), "127.0.0.1")
    with pytest.raises(MachineError, match="refused by every client: it has expired"):
        here.name_of(Facts(fault="it has expired"), "127.0.0.1")


@pytest.mark.parametrize(
    ("address", "public", "is_open"),
    [
        ("127.0.0.1", None, False), ("::1", None, False), ("0.0.0.0", None, True), ("::", None, True),
        ("192.0.2.1", "http://a.example.org", True), ("192.0.2.1", "https://a.example.org", False),
    ],
)  # fmt: skip
def test_plain_http_that_others_reach_is_known(address: str, public: str | None, is_open: bool) -> None:
    assert launch.is_open(load(ServerSettings, public_base_url=public), address) is is_open


@pytest.mark.parametrize("given", ["*", "proxy.example.org", "10.0.0.1/8"])
def test_only_addresses_are_trusted_as_proxies(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("TUNEFLEET_TRUSTED_PROXIES", given)
    with pytest.raises(MachineError, match="TUNEFLEET_TRUSTED_PROXIES"):
        load(ServerSettings)


def test_who_shakes_hands_while_it_is_read_again_is_served(authority: Authority, pair: Pair) -> None:
    certificate, over = Certificate(pair.cert, pair.key), threading.Event()
    trust = ssl.create_default_context(cafile=authority.file)

    def renew() -> None:
        while not over.is_set():
            certificate.refresh(asked=True)

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        for _ in range(300):
            there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = trust.wrap_bio(back, there, server_hostname="127.0.0.1")
            server = certificate.context.wrap_bio(there, back, server_side=True)
            for side in (client, server, client, server, client):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
            assert client.getpeercert()
    finally:
        over.set()
        renewing.join()
