"""The address of a Redis with the files that TLS to it takes: authorities, and a certificate of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlencode, urlsplit

from tunefleet.errors import MachineError
from tunefleet.settings import MeetingSettings
from tunefleet.transport.redis.keys import check_url

# What redis-py calls the files in a URL, which may name them by itself; our variables come before it.
_PARAMETERS: Final = {
    "ssl_ca_certs": "TUNEFLEET_REDIS_CA_FILE",
    "ssl_certfile": "TUNEFLEET_REDIS_CERT_FILE",
    "ssl_keyfile": "TUNEFLEET_REDIS_KEY_FILE",
}


def address_of(settings: MeetingSettings) -> str | None:
    """Return the URL of the Redis that the settings name, files included; null if they name none.

    Raises:
        MachineError: If the URL is none, a file cannot be read, or there are files for a connection without TLS.
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
            f"{_PARAMETERS[next(iter(given))]} is set, and REDIS_URL={parts.scheme}://… is not encrypted.",
            hint="Write rediss://… in REDIS_URL, or leave the file out.",
        )
    named = parse_qs(parts.query)
    for name, variable in _PARAMETERS.items():
        path = given.get(name) or next((Path(each) for each in named.get(name, ())), None)
        if path is not None:
            _read(variable if name in given else f"{name} in REDIS_URL", path)
    if "ssl_certfile" in {*given, *named} and "ssl_keyfile" not in {*given, *named}:
        raise MachineError(
            "TUNEFLEET_REDIS_CERT_FILE is set, and TUNEFLEET_REDIS_KEY_FILE is not.", hint="The two go together."
        )
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
            f"{named}={path} cannot be read: {error.strerror or error}.",
            hint="Let it name a PEM file that the user of this process may read.",
        ) from None
