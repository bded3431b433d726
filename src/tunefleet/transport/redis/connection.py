"""The connection to a Redis: its address with TLS files, its health and its counters."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tunefleet.errors import MachineError
from tunefleet.settings import RedisSettings
from tunefleet.transport.redis.errors import explained, shown
from tunefleet.transport.redis.keys import check_url
from tunefleet.transport.redis.worker import connect

# redis-py's URL parameters for the files. A URL may contain them; our variables take precedence.
_PARAMETERS: Final = {
    "ssl_ca_certs": "TUNEFLEET_REDIS_CA_FILE",
    "ssl_certfile": "TUNEFLEET_REDIS_CERT_FILE",
    "ssl_keyfile": "TUNEFLEET_REDIS_KEY_FILE",
}
_ANSWER_S: Final = 5.0


def address_of(settings: RedisSettings) -> str | None:
    """Return the URL of the configured Redis including its TLS files; `None` if none is configured.

    Raises:
        MachineError: If the URL is invalid, a file is unreadable, or there are TLS files for a connection without TLS.
    """
    if settings.redis_url is None:
        return None
    url = settings.redis_url.get_secret_value()
    check_url(url)
    files = (settings.redis_ca_file, settings.redis_cert_file, settings.redis_key_file)
    given = {name: path.expanduser() for name, path in zip(_PARAMETERS, files, strict=True) if path is not None}
    parts = urlsplit(url)
    if given and parts.scheme != "rediss":
        raise MachineError(
            f"{_PARAMETERS[next(iter(given))]} is set, but TUNEFLEET_REDIS_URL={parts.scheme}://… does not use TLS.",
            hint="Use rediss://… in TUNEFLEET_REDIS_URL, or unset the file.",
        )
    named = parse_qs(parts.query)
    for name, variable in _PARAMETERS.items():
        path = given.get(name) or next((Path(each) for each in named.get(name, ())), None)
        if path is not None:
            _read(variable if name in given else f"{name} in TUNEFLEET_REDIS_URL", path)
    if "ssl_certfile" in {*given, *named} and "ssl_keyfile" not in {*given, *named}:
        raise MachineError("TUNEFLEET_REDIS_CERT_FILE is set without TUNEFLEET_REDIS_KEY_FILE.", hint="Set both.")
    if not given:
        return url
    kept = {name: values[-1] for name, values in named.items() if name not in given}
    return parts._replace(query=urlencode({**kept, **{name: str(path) for name, path in given.items()}})).geturl()


def _read(named: str, path: Path) -> None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise MachineError(
            f"Cannot read {named}={path}: {error.strerror or error}.",
            hint="Set it to a PEM file that this process can read.",
        ) from None


@dataclass(frozen=True, slots=True)
class RedisUse:
    """Counters of a Redis since its start."""

    commands: int
    input_bytes: int
    output_bytes: int
    memory_bytes: int
    clients: int


def use_of(url: str) -> RedisUse:
    """Return the counters of a Redis.

    Raises:
        UnreachableError: If it does not respond.
        MachineError: If the URL is invalid, or the login is rejected.
    """
    check_url(url)
    client: Any = Redis.from_url(
        url, decode_responses=True, encoding_errors="replace", protocol=2,
        socket_timeout=_ANSWER_S, socket_connect_timeout=_ANSWER_S,
        retry=Retry(NoBackoff(), 0),
    )  # fmt: skip
    try:
        info = client.info()
    except (RedisError, OSError) as error:
        raise explained(error, url, "INFO", first=True) from error
    finally:
        client.close()
    return RedisUse(
        int(info["total_commands_processed"]),
        int(info["total_net_input_bytes"]),
        int(info["total_net_output_bytes"]),
        int(info["used_memory"]),
        int(info["connected_clients"]),
    )


def ping(settings: RedisSettings) -> str:
    """Check the configured Redis, and return a status message.

    Raises:
        MachineError: If the URL is invalid, a file is unreadable, or the login is rejected.
        UnreachableError: If it does not respond.
    """
    url = address_of(settings)
    assert url is not None, "callers check that a Redis is configured"
    try:
        with closing(connect(url, read_s=_ANSWER_S)) as client:
            client.ping()
    except (RedisError, OSError) as error:
        raise explained(error, url, "PING", first=True) from error
    return f"{shown(url)} responds"
