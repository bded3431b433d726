"""Downloads a model's `config.json` from a Hub, with a short timeout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx
import orjson

from tunefleet.client.external.ssrf_guard import SsrfGuard, shown
from tunefleet.errors import UnreachableError

_PATIENCE: Final = httpx.Timeout(4.0, connect=2.0)
_MAX_BYTES: Final = 1 << 20


def fetch(url: str, allowed: Sequence[str]) -> Mapping[str, Any]:
    """Return a `config.json`.

    Args:
        allowed: Hosts and networks in private ranges that may be reached.

    Raises:
        ForbiddenError: If the address is not allowed.
        UnreachableError: If there is no valid configuration within a few seconds.
    """
    content = b""
    with SsrfGuard(allowed, who="server").get(url, timeout=_PATIENCE) as answer:
        if not answer.is_success:
            raise UnreachableError(f"{shown(url)} responded with status {answer.status_code}.")
        for piece in answer.iter_bytes():
            content += piece
            if len(content) > _MAX_BYTES:
                raise UnreachableError(f"{shown(url)} is too large for a model configuration.")
    try:
        found = orjson.loads(content)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UnreachableError(f"{shown(url)} is not a model configuration.")
    return found
