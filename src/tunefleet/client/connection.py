"""Resolves server and key: arguments, then `TUNEFLEET_URL` and `TUNEFLEET_KEY`, then `client.json`."""

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
_ANSWER_S: Final = 5.0


class ClientFile(Message):
    """`~/.tunefleet/client.json`, mode 0600: the server that the user last started or logged in to."""

    url: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """A server's base URL (without `/api/v1`) and its key; `repr` hides the key."""

    url: str
    key: str | None = field(default=None, repr=False)
    trust: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    """Trust store that replaces the system's; used by a server that connects to itself."""


def resolve(url: str | None = None, key: str | None = None, *, settings: ClientSettings | None = None) -> Connection:
    """Determine server and key.

    Args:
        url: The server, if given explicitly.
        key: The key, if given explicitly.
        settings: The process's settings; read from the environment if `None`.

    Raises:
        UnreachableError: If no server is configured.
        AuthError: If no key is configured for it.
        InputError: If the URL is invalid.
    """
    settings = settings or load(ClientSettings)
    saved = read_client_file(settings.client_file)
    chosen = url or settings.url or (saved.url if saved else None)
    if chosen is None:
        raise UnreachableError(
            "No Tunefleet server configured.",
            hint="Start one on this machine with `tunefleet up`, or log in to one with `tunefleet login URL`.",
        )
    base = normalise(chosen)
    secret = key or (settings.key.get_secret_value() if settings.key else None)
    if secret is None and saved is not None and normalise(saved.url) == base:
        # The saved key belongs to the saved server: it is never sent to another one.
        secret = saved.key
    if secret is None:
        raise AuthError(f"No API key for {base}.", hint=f"Run `tunefleet login {base}`, or set TUNEFLEET_KEY.")
    return Connection(base, secret)


def _shown(text: str) -> str:
    """Return the first line of a URL without credentials: errors are logged."""
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
        raise InputError(f"{_shown(url)!r} is not a server URL.", hint="Example: http://127.0.0.1:8000.")
    bare = parsed.copy_with(query=None, fragment=None, userinfo=b"")
    return str(bare).rstrip("/").removesuffix("/api/v1")


def answers(url: str, *, timeout_s: float = 3.0) -> bool:
    """Return whether a server responds at a URL; needs no key.

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
    """Return the text at a public URL of one of our servers.

    Args:
        timeout_s: Seconds to wait.

    Raises:
        UnreachableError: If there is no response, or an error.
    """
    from tunefleet.client import trust

    try:
        return httpx.get(url, timeout=timeout_s, **trust.options(url)).raise_for_status().text
    except httpx.HTTPError as error:
        raise UnreachableError(f"Cannot read {url}: {str(error) or type(error).__name__}.") from error


def read_client_file(file: Path) -> ClientFile | None:
    """Read `client.json`; `None` if there is none.

    Raises:
        InputError: If it is unreadable or invalid.
    """
    try:
        return ClientFile.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise InputError(
            f"{file} is unreadable or invalid.",
            hint=f"Delete it and run `tunefleet login URL` again ({type(error).__name__}).",
        ) from error


def write_client_file(file: Path, connection: Connection) -> None:
    """Write `client.json` atomically, readable only by this user."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    # Created with mode 0600 from the start: a later chmod would leave a moment in which others can read the key.
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        json.dump({"url": connection.url, "key": connection.key}, out, indent=2)
        out.write("\n")
    draft.replace(file)


def ahead_s(url: str) -> float | None:
    """Return how many seconds this machine's clock is ahead of a server's, with a precision of one second.

    Returns:
        Negative if it is behind; `None` if the server does not respond or sends no date.
    """
    began = time()
    try:
        answer = httpx.get(f"{url.rstrip('/')}/healthz", verify=context(), timeout=_ANSWER_S)
        server_time = parsedate_to_datetime(answer.headers["Date"]).timestamp()
    except (httpx.HTTPError, KeyError, ValueError):
        return None
    # The server read its clock between request and response; the `Date` header drops fractions of a second.
    return min((began - server_time, time() - server_time - 1.0), key=abs)
