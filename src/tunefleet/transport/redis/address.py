"""The URL of the configured Redis with its TLS files. Does not import redis: most servers run without one."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlencode, urlsplit

from tunefleet.errors import MachineError
from tunefleet.settings import RedisSettings
from tunefleet.transport.redis.keys import check_url

# redis-py's URL parameters for the files. A URL may contain them; our variables take precedence.
_PARAMETERS: Final = {
    "ssl_ca_certs": "TUNEFLEET_REDIS_CA_FILE",
    "ssl_certfile": "TUNEFLEET_REDIS_CERT_FILE",
    "ssl_keyfile": "TUNEFLEET_REDIS_KEY_FILE",
}


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
