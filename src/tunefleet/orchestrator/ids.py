"""Ids, secrets and attempt tokens."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from tunefleet.errors import ConflictError

# How many matches an ambiguous id lists.
_LISTED: Final = 5
_MAC_DIGITS: Final = 32
# 2^7 ids per millisecond; more borrow from the next one. 41 bits of milliseconds last until 2039.
_SUB_BITS: Final = 7
_lock = threading.Lock()
_last = [0]


def new_id(prefix: str) -> str:
    """Return a new id, such as `task-3f9c0a7be211`."""
    return f"{prefix}-{secrets.token_hex(6)}"


def new_ordered_id(prefix: str) -> str:
    """Return a new id that sorts after all earlier ones of this process."""
    with _lock:
        # Ordered, so that rows inserted together are next to each other in the index; `max` covers a clock set back.
        _last[0] = max(_last[0] + 1, time.time_ns() // 1_000_000 << _SUB_BITS)
        return f"{prefix}-{_last[0]:012x}"


class _Named(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=_Named)


def only_match(what: str, start: str, by_prefix: Callable[[int], Sequence[R]]) -> R | None:
    """Return the row whose id begins with a text; None if there is none.

    Args:
        what: Plural noun for the error.
        by_prefix: Returns up to a number of rows whose ids have the prefix.

    Raises:
        ConflictError: If there are several; its hint lists them.
    """
    found = by_prefix(_LISTED + 1)
    if len(found) < 2:
        return found[0] if found else None
    named = ", ".join(f"{row.id} ({row.name})" for row in found[:_LISTED])
    more = ", …" if len(found) > _LISTED else ""
    raise ConflictError(f"Several {what} begin with {start}.", hint=f"Enter more of the id: {named}{more}.")


def new_secret() -> str:
    """Return a new API key."""
    # 30 random bytes are 40 characters.
    return f"tf_{secrets.token_urlsafe(30)}"


def is_secret(text: str) -> bool:
    """Whether a text may be an API key of ours."""
    return re.fullmatch(r"tf_[A-Za-z0-9_-]{20,200}", text) is not None


def hash_secret(secret: str) -> str:
    """Return the hash of a secret that is stored."""
    # A plain SHA-256 without salt is enough: keys are 30 random bytes, not passwords.
    return hashlib.sha256(secret.encode()).hexdigest()


def attempt_token(server_secret: bytes, attempt_id: str) -> str:
    """Return the token of an attempt: its id, signed by the server."""
    return f"{attempt_id}.{_mac(server_secret, attempt_id)}"


def attempt_of(server_secret: bytes, token: str) -> str | None:
    """Return the attempt id of a token; None if this server did not sign it."""
    attempt_id, _, mac = token.partition(".")
    # Constant-time comparison: timing must not reveal the signature.
    return attempt_id if hmac.compare_digest(mac.encode(), _mac(server_secret, attempt_id).encode()) else None


def _mac(server_secret: bytes, attempt_id: str) -> str:
    return hmac.new(server_secret, attempt_id.encode(), hashlib.sha256).hexdigest()[:_MAC_DIGITS]


def sign(server_secret: bytes, purpose: str, *about: str) -> str:
    """Return the HMAC-SHA256 of `about` for one purpose, in hex."""
    return hmac.new(server_secret, "\n".join((purpose, *about)).encode(), hashlib.sha256).hexdigest()
