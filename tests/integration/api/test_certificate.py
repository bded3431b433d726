"""Certificates that openssl made: passphrase, renewal, expiry, and what clients learn."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tunefleet.certificate
from tests.fakes.authority import Authority, Pair, openssl
from tunefleet.certificate import Certificate, CertificateInfo, load_certificate
from tunefleet.errors import MachineError


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory, missing: Callable[[str], None]) -> Authority:
    if shutil.which("openssl") is None:
        missing("openssl")
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.sign("server", "127.0.0.1", "fleet.example.org", "*.lab.example.org")


def test_what_clients_learn_is_known(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    certificate = Certificate(pair.cert, pair.key)
    facts = certificate.facts
    assert set(facts.names) == {"127.0.0.1", "fleet.example.org", "*.lab.example.org"}
    assert facts.expires_at is not None
    assert 4 * 86_400 < facts.expires_at - time.time() < 6 * 86_400
    assert facts.fault is None
    for host, covered in {
        "fleet.example.org": True, "FLEET.example.org": True, "a.lab.example.org": True, "b.a.lab.example.org": False,
        "example.org": False, "127.0.0.1": True, "127.0.0.2": False, "[::1]": False,
    }.items():  # fmt: skip
        assert facts.covers(host) is covered, host
    certificate.tell()
    assert caplog.text == ""


def test_an_expired_certificate_is_said_aloud(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    old = authority.sign("old", "127.0.0.1", expired=True)
    certificate = Certificate(old.cert, old.key)
    certificate.tell()
    assert "Clients will reject the certificate" in caplog.text
    assert "it has expired" in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (lambda pair, other: (pair.cert, other.key), "is not the key of the first certificate"),
        (lambda pair, other: (pair.key, pair.key), "contains no valid certificate in PEM"),
        (lambda pair, other: (pair.cert, pair.cert), "contains no valid private key in PEM"),
        (lambda pair, other: (pair.cert, None), "TUNEFLEET_TLS_CERT_FILE is set, but TUNEFLEET_TLS_KEY_FILE is not"),
        (lambda pair, other: (None, pair.key), "TUNEFLEET_TLS_KEY_FILE is set, but TUNEFLEET_TLS_CERT_FILE is not"),
        (lambda pair, other: (pair.cert.with_name("nowhere.pem"), pair.key), "nowhere.pem cannot be read: No such"),
        (lambda pair, other: (pair.cert, pair.cert.parent), "cannot be read: Is a directory"),
    ],
    ids=["another's key", "key as certificate", "certificate as key", "no key", "no certificate", "missing", "folder"],
)
def test_what_cannot_be_used_is_named(
    authority: Authority, pair: Pair, settings: Callable[[Pair, Pair], tuple[Path, Path]], words: str
) -> None:
    other = authority.sign("other", "127.0.0.1")
    with pytest.raises(MachineError, match=words):
        load_certificate(*settings(pair, other))


def test_a_passphrase_is_refused_and_nobody_is_asked_for_it(pair: Pair, tmp_path: Path) -> None:
    locked = tmp_path / "locked.key"
    openssl("pkey", "-in", str(pair.key), "-aes256", "-passout", "pass:geheim", "-out", str(locked))
    with pytest.raises(MachineError, match="has a passphrase"):
        Certificate(pair.cert, locked)


def test_a_renewed_certificate_is_taken_up_and_a_half_written_one_is_not(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = tmp_path / "live.pem", tmp_path / "live.key"
    first, second = authority.sign("first", "first.example.org"), authority.sign("second", "second.example.org")
    shutil.copy(first.cert, cert)
    shutil.copy(first.key, key)
    certificate = Certificate(cert, key)
    context = certificate.context
    assert not certificate.refresh(), "nothing has changed"
    shutil.copy(second.cert, cert)
    _touch(cert)
    assert not certificate.refresh()
    assert not certificate.refresh()
    assert caplog.text.count("the old one remains in use: Key") == 1, "said once"
    assert certificate.facts.names == ("first.example.org",)
    shutil.copy(second.key, key)
    _touch(key)
    caplog.set_level(logging.INFO)
    assert certificate.refresh()
    assert certificate.facts.names == ("second.example.org",)
    assert certificate.context is context, "who listens has it already"
    assert "was reloaded" in caplog.text
    assert certificate.refresh(asked=True), "SIGHUP reads it in any case"


def _touch(path: Path) -> None:
    later = path.stat().st_mtime_ns + 10_000_000
    os.utime(path, ns=(later, later))


def test_nothing_older_than_tls_1_2_is_spoken(pair: Pair) -> None:
    assert Certificate(pair.cert, pair.key).context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_one_that_expires_soon_is_a_warning(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    certificate = Certificate(pair.cert, pair.key)
    certificate.facts = CertificateInfo(("127.0.0.1",), time.time() + 5 * 3600)
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
    certificate.facts = CertificateInfo(("127.0.0.1",), time.time() + 5 * 3600)
    assert not certificate.refresh()
    assert "expires in 5 hours" in caplog.text
    certificate.facts = CertificateInfo(("127.0.0.1",), time.time() - 60)
    assert not certificate.refresh()
    assert "Clients will reject" in caplog.text
    assert "it has expired" in caplog.text


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
