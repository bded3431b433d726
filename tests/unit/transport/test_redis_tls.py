"""What TLS to a Redis takes is put into its address, and what is wrong with it is said at the start."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tunefleet.errors import MachineError, UnreachableError
from tunefleet.settings import WorkerSettings, load
from tunefleet.transport.redis.address import address_of
from tunefleet.transport.redis.errors import explained

URL = "rediss://worker:p%40ss@redis.lab:6379/2"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    made = {name: tmp_path / f"{name}.pem" for name in ("redis_ca_file", "redis_cert_file", "redis_key_file")}
    for path in made.values():
        path.write_text("PEM")
    return made


def test_an_address_without_files_stays_as_it_is() -> None:
    assert address_of(load(WorkerSettings)) is None
    for url in ("redis://redis.lab", URL, f"{URL}?ssl_check_hostname=false", "unix:///run/redis.sock?db=1"):
        assert address_of(load(WorkerSettings, redis_url=url)) == url


def test_files_become_parameters_and_come_before_those_of_the_url(files: dict[str, Path], tmp_path: Path) -> None:
    url = f"{URL}?ssl_ca_certs={tmp_path}/older.pem&ssl_check_hostname=false"
    made = urlsplit(str(address_of(load(WorkerSettings, redis_url=url, **files))))
    assert made._replace(query="").geturl() == URL
    assert parse_qs(made.query) == {
        "ssl_check_hostname": ["false"],
        "ssl_ca_certs": [str(files["redis_ca_file"])],
        "ssl_certfile": [str(files["redis_cert_file"])],
        "ssl_keyfile": [str(files["redis_key_file"])],
    }


def test_what_cannot_be_used_is_named(files: dict[str, Path], tmp_path: Path) -> None:
    def refused(url: str = URL, **settings: Path) -> str:
        with pytest.raises(MachineError) as told:
            address_of(load(WorkerSettings, redis_url=url, **settings))
        assert "p%40ss" not in str(told.value)
        return str(told.value)

    assert "REDIS_URL=redis://… does not use TLS" in refused("redis://redis.lab", redis_ca_file=files["redis_ca_file"])
    away = tmp_path / "away.pem"
    assert f"Cannot read TUNEFLEET_REDIS_CA_FILE={away}: No such file" in refused(redis_ca_file=away)
    assert f"Cannot read ssl_ca_certs in TUNEFLEET_REDIS_URL={away}" in refused(f"{URL}?ssl_ca_certs={away}")
    assert "without TUNEFLEET_REDIS_KEY_FILE" in refused(redis_cert_file=files["redis_cert_file"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] unable to get local issuer", "TUNEFLEET_REDIS_CA_FILE"),
        ("[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert", "TUNEFLEET_REDIS_CERT_FILE"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "Check that TUNEFLEET_REDIS_URL has the TLS port"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_connection_that_tls_refuses_is_explained(words: str, told: str, first: bool) -> None:
    error = explained(OSError(words), URL, "XADD tasks.events", first=first)
    assert type(error) is (MachineError if first else UnreachableError)
    assert told in str(error)
    assert "p%40ss" not in str(error)


def test_a_connection_that_ends_at_once_may_lack_a_certificate() -> None:
    told = explained(ConnectionResetError(104, "Connection reset by peer"), URL, "XADD tasks.events", first=True)
    assert "TUNEFLEET_REDIS_CERT_FILE" in str(told)
    plain = explained(ConnectionResetError(104, "Connection reset by peer"), "redis://redis.lab", "XADD", first=True)
    assert plain.hint is None
    refused = explained(OSError("Error 111 connecting to redis.lab:6379. Connection refused."), URL, "XADD")
    assert refused.hint is None
