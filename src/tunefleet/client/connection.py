"""Which server, and with which key: arguments, then `TUNEFLEET_URL` and `TUNEFLEET_KEY`, then `client.json`."""

from __future__ import annotations

import json
import os
import re
import ssl
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import time
from typing import Final

import httpx
from pydantic import ValidationError

from tunefleet.client.trust import context
from tunefleet.errors import AuthError, InputError, UnreachableError
from tunefleet.schemas.base import Message
from tunefleet.settings import ClientSettings, load

_USER: Final = re.compile(r"://[^/@\s]*@")
_MOST_SHOWN: Final = 200


class ClientFile(Message):
    """`~/.tunefleet/client.json`, mode 0600: the server that this user last started or logged in to."""

    url: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """A server's base URL (without `/api/v1`) and the key for it; the key is not shown by `repr`."""

    url: str
    key: str | None = field(default=None, repr=False)
    trust: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    """What to trust instead of the system's authorities; a server has it that reaches itself."""


def resolve(url: str | None = None, key: str | None = None, *, settings: ClientSettings | None = None) -> Connection:
    """Find the server and the key.

    Args:
        url: The server, if it is given outright.
        key: The key, if it is given outright.
        settings: The process's settings; read from the environment if `None`.

    Raises:
        UnreachableError: If no server is known.
        AuthError: If no key for it is known.
        InputError: If the URL is not one.
    """
    settings = settings or load(ClientSettings)
    saved = read_client_file(settings.client_file)
    chosen = url or settings.url or (saved.url if saved else None)
    if chosen is None:
        raise UnreachableError(
            "No Tunefleet server is known.",
            hint="Start one on this machine with `tunefleet up`, or name one with `tunefleet login URL`.",
        )
    base = normalise(chosen)
    secret = key or (settings.key.get_secret_value() if settings.key else None)
    if secret is None and saved is not None and normalise(saved.url) == base:
        # The saved key belongs to the saved server: it is never sent to another one.
        secret = saved.key
    if secret is None:
        raise AuthError(f"No key for {base} is known.", hint=f"Run `tunefleet login {base}`, or set TUNEFLEET_KEY.")
    return Connection(base, secret)


def _shown(text: str) -> str:
    """Return the beginning of a text, without a token in it: errors are logged."""
    first = next(iter(text.splitlines()), "")
    return _USER.sub("://…@", first)[:_MOST_SHOWN]


def normalise(url: str) -> str:
    """Return a base URL without a trailing slash or `/api/v1`.

    Raises:
        InputError: If it is not an http or https URL with a host.
    """
    try:
        parsed = httpx.URL(url if "://" in url else f"http://{url}")
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise InputError(f"{_shown(url)!r} is not the URL of a server.", hint="Write it like http://127.0.0.1:8000.")
    bare = parsed.copy_with(query=None, fragment=None, userinfo=b"")
    return str(bare).rstrip("/").removesuffix("/api/v1")


def answers(url: str, *, timeout_s: float = 3.0) -> bool:
    """Whether a server answers at a URL; needs no key.

    Args:
        timeout_s: Seconds to wait.
    """
    from tunefleet.client import trust

    base = normalise(url)
    try:
        return httpx.get(f"{base}/healthz", timeout=timeout_s, **trust.options(base)).is_success
    except httpx.HTTPError:
        return False


def text_at(url: str, *, timeout_s: float = 30.0) -> str:
    """Return the text that a server of ours has at an address which needs no key.

    Args:
        timeout_s: Seconds to wait.

    Raises:
        UnreachableError: If it does not answer, or with an error.
    """
    from tunefleet.client import trust

    try:
        return httpx.get(url, timeout=timeout_s, **trust.options(url)).raise_for_status().text
    except httpx.HTTPError as error:
        raise UnreachableError(f"{url} gives nothing: {str(error) or type(error).__name__}.") from error


def read_client_file(file: Path) -> ClientFile | None:
    """Read `client.json`; `None` if there is none.

    Raises:
        InputError: If it cannot be read.
    """
    try:
        return ClientFile.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise InputError(
            f"{file} cannot be read.", hint=f"Remove it and run `tunefleet login URL` again ({type(error).__name__})."
        ) from error


def write_client_file(file: Path, connection: Connection) -> None:
    """Write `client.json` whole, readable by this user alone."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        json.dump({"url": connection.url, "key": connection.key}, out, indent=2)
        out.write("\n")
    draft.replace(file)


_ANSWER_S: Final = 5.0


def ahead_s(url: str) -> float | None:
    """Return the seconds by which this machine is ahead of a server; the date of an answer is good to a second.

    Returns:
        Below zero if it is behind; null if the server does not answer or says no date.
    """
    began = time()
    try:
        answer = httpx.get(f"{url.rstrip('/')}/healthz", verify=context(), timeout=_ANSWER_S)
        told = parsedate_to_datetime(answer.headers["Date"]).timestamp()
    except (httpx.HTTPError, KeyError, ValueError):
        return None
    # The truth lies between the moments of asking and of hearing; the date leaves out what is below a second.
    return min((began - told, time() - told - 1.0), key=abs)
