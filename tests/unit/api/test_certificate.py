"""The certificate of a server: what is wrong with it is said at the start, and a new one is taken up in place."""

from __future__ import annotations

import pytest

from tunefleet.api import launch
from tunefleet.certificate import CertificateInfo, load_certificate
from tunefleet.cli.local_cluster import supervisor
from tunefleet.errors import MachineError
from tunefleet.settings import ServerSettings, load


def test_none_is_none() -> None:
    assert load_certificate(None, None) is None


def test_a_fleet_on_one_machine_takes_a_name_that_leads_to_it() -> None:
    both = ("fleet.example.org", "127.0.0.1")
    assert supervisor.certificate_host(CertificateInfo(both), "127.0.0.1") == "127.0.0.1"
    assert supervisor.certificate_host(CertificateInfo(("localhost",)), "127.0.0.1") == "localhost"
    with pytest.raises(MachineError, match=r"is for \*.invalid, which does not resolve to this machine"):
        supervisor.certificate_host(CertificateInfo(("*.invalid",)), "127.0.0.1")
    with pytest.raises(MachineError, match=r"Clients reject .*: it has expired"):
        supervisor.certificate_host(CertificateInfo(fault="it has expired"), "127.0.0.1")


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
