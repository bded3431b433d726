"""What all stages share, merged with what one stage says of itself; every piece keeps its place in the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tunefleet.spec.text import Path, Source

SPEC: Path = ("spec",)
_TYPED: Final = frozenset({(*SPEC, "data"), (*SPEC, "output", "destination"), (*SPEC, "checkpoint", "load")})
"""Mappings whose `type` says which keys they take: one of another type takes nothing of the shared one."""


def merged_source(source: Source, base: Mapping[str, Any], own: Mapping[str, Any], own_at: Path) -> Source:
    """Return the spec of one stage as if it were the document's only one.

    Args:
        base: The mapping below `spec` that all stages share.
        own: The stage's `spec`.
        own_at: Where that stands in the document.

    Returns:
        `{"spec": …}`, whose values are found where they were written, in the stage or in what all share.
    """
    merged, origins = _merge(base, SPEC, own, own_at, SPEC)
    return source.part({"spec": merged}, origins)


def _merge(
    base: Mapping[str, Any], base_at: Path, own: Mapping[str, Any], own_at: Path, at: Path
) -> tuple[dict[str, Any], dict[Path, Path]]:
    """Merge, and say where each piece comes from: the outermost path of the result → its path in the document."""
    merged: dict[str, Any] = {}
    origins = {at: own_at}
    if at in _TYPED and None not in (base.get("type"), own.get("type")) and base["type"] != own["type"]:
        return dict(own), origins
    for key, value in base.items():
        mine = own.get(key)
        if isinstance(value, Mapping) and isinstance(mine, Mapping):
            merged[key], inner = _merge(value, (*base_at, key), mine, (*own_at, key), (*at, key))
            origins |= inner
        elif key in own:
            merged[key] = mine
        else:
            merged[key] = value
            origins[*at, key] = (*base_at, key)
    return merged | {key: value for key, value in own.items() if key not in base}, origins
