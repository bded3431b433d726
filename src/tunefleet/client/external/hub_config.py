"""Reads from a Hub with a short timeout: a model's `config.json`, and the search for models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

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
    found = _read(url, allowed, "a model configuration")
    if not isinstance(found, dict):
        raise UnreachableError(f"{shown(url)} is not a model configuration.")
    return found


def search(endpoint: str, text: str, limit: int, allowed: Sequence[str]) -> list[Any]:
    """Return text generation models of a Hub that match a text, most downloaded first, as the Hub describes them.

    Raises:
        ForbiddenError: If the address is not allowed.
        UnreachableError: If the Hub does not answer within a few seconds.
    """
    # https://huggingface.co/docs/hub/api: `expand` selects the fields, and without it there is no size.
    expand = [("expand[]", name) for name in ("safetensors", "gated", "downloads")]
    wanted = [("search", text), ("pipeline_tag", "text-generation"), ("sort", "downloads"), ("limit", str(limit))]
    url = f"{endpoint.rstrip('/')}/api/models?{urlencode(wanted + expand)}"
    found = _read(url, allowed, "a list of models")
    if not isinstance(found, list):
        raise UnreachableError(f"{shown(url)} is not a list of models.")
    return found


def _read(url: str, allowed: Sequence[str], what: str) -> Any:
    content = b""
    with SsrfGuard(allowed, who="server").get(url, timeout=_PATIENCE) as answer:
        if not answer.is_success:
            raise UnreachableError(f"{shown(url)} responded with status {answer.status_code}.")
        for piece in answer.iter_bytes():
            content += piece
            if len(content) > _MAX_BYTES:
                raise UnreachableError(f"{shown(url)} is too large for {what}.")
    try:
        return orjson.loads(content)
    except ValueError:
        raise UnreachableError(f"{shown(url)} is not {what}.") from None
