"""Ids, secrets and attempt tokens."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections.abc import Sequence
from typing import Final

from tunefleet.errors import ConflictError

# So many of those that an id may mean are named.
MEANT_AT_MOST: Final = 5
_MAC_DIGITS: Final = 32
_SUB_BITS: Final = 7
"""Ids in one millisecond, as a power of two; more borrow from the next. 41 bits of milliseconds last until 2039."""
_lock = threading.Lock()
_last = [0]


def new_id(prefix: str) -> str:
    """Return a new id, such as `task-3f9c0a7be211`."""
    return f"{prefix}-{secrets.token_hex(6)}"


def new_ordered_id(prefix: str) -> str:
    """Return a new id that sorts behind all earlier ones of this process: rows made together lie together."""
    with _lock:
        _last[0] = max(_last[0] + 1, time.time_ns() // 1_000_000 << _SUB_BITS)
        return f"{prefix}-{_last[0]:012x}"


def several(what: str, start: str, found: Sequence[tuple[str, str]]) -> ConflictError:
    """Return the error of an id whose beginning several have; its hint names them."""
    named = ", ".join(f"{id_} ({name})" for id_, name in found[:MEANT_AT_MOST])
    more = ", …" if len(found) > MEANT_AT_MOST else ""
    return ConflictError(f"Several {what} begin with {start}.", hint=f"Give more of the id: {named}{more}.")


def new_secret() -> str:
    """Return a new API key."""
    # 30 random bytes are 40 characters.
    return f"tf_{secrets.token_urlsafe(30)}"


def is_secret(text: str) -> bool:
    """Whether a text may be an API key of ours."""
    return re.fullmatch(r"tf_[A-Za-z0-9_-]{20,200}", text) is not None


def hashed(secret: str) -> str:
    """Return what is stored of a secret. Secrets of ours are random: a plain hash cannot be guessed back."""
    return hashlib.sha256(secret.encode()).hexdigest()


def attempt_token(server_secret: bytes, attempt_id: str) -> str:
    """Return the token that names an attempt and proves that the server named it."""
    return f"{attempt_id}.{_mac(server_secret, attempt_id)}"


def attempt_of(server_secret: bytes, token: str) -> str | None:
    """Return the id of the attempt that a token names; null if the server never made it."""
    attempt_id, _, mac = token.partition(".")
    return attempt_id if hmac.compare_digest(mac.encode(), _mac(server_secret, attempt_id).encode()) else None


def _mac(server_secret: bytes, attempt_id: str) -> str:
    return hmac.new(server_secret, attempt_id.encode(), hashlib.sha256).hexdigest()[:_MAC_DIGITS]


def seal(server_secret: bytes, purpose: str, *about: str) -> str:
    """Return the HMAC-SHA256 of something, in hex."""
    return hmac.new(server_secret, "\n".join((purpose, *about)).encode(), hashlib.sha256).hexdigest()
