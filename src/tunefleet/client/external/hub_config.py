"""Fetch the configuration of a model from a hub: a small file, which is not waited for long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx
import orjson

from tunefleet.client.external.ssrf_guard import Reach, shown
from tunefleet.errors import UnreachableError

_PATIENCE: Final = httpx.Timeout(4.0, connect=2.0)
_MAX_BYTES: Final = 1 << 20


def fetch(url: str, allowed: Sequence[str]) -> Mapping[str, Any]:
    """Return a `config.json`.

    Args:
        allowed: Hosts and networks in private ranges that may be reached.

    Raises:
        ForbiddenError: If the address may not be reached.
        UnreachableError: If there is no answer in some seconds, or it is no configuration.
    """
    content = b""
    with Reach(allowed, who="server").get(url, timeout=_PATIENCE) as answer:
        if not answer.is_success:
            raise UnreachableError(f"{shown(url)} answers {answer.status_code}.")
        for piece in answer.iter_bytes():
            content += piece
            if len(content) > _MAX_BYTES:
                raise UnreachableError(f"{shown(url)} is too large for a configuration.")
    try:
        found = orjson.loads(content)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UnreachableError(f"{shown(url)} is no configuration.")
    return found
