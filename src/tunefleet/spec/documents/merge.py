"""Merges shared keys with those of a stage; every value keeps its position in the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tunefleet.spec.text import Path, Source

SPEC: Path = ("spec",)
# Mappings whose `type` determines their keys: with another type, a stage inherits none of the shared keys.
_TYPED: Final = frozenset({(*SPEC, "data"), (*SPEC, "output", "destination"), (*SPEC, "checkpoint", "load")})


def merged_source(source: Source, base: Mapping[str, Any], own: Mapping[str, Any], own_at: Path) -> Source:
    """Return the spec of one stage as if it were the only one.

    Args:
        base: The mapping below `spec` that all stages share.
        own: The stage's `spec`.
        own_at: Its path in the document.

    Returns:
        `{"spec": …}`; each value has the position where it was written, in the stage or in the shared keys.
    """
    merged, origins = _merge(base, SPEC, own, own_at, SPEC)
    return source.part({"spec": merged}, origins)


def _merge(
    base: Mapping[str, Any], base_at: Path, own: Mapping[str, Any], own_at: Path, at: Path
) -> tuple[dict[str, Any], dict[Path, Path]]:
    """Merge, and return the origins: outermost path in the result → path in the document."""
    merged: dict[str, Any] = {}
    origins = {at: own_at}
    if at in _TYPED and None not in (base.get("type"), own.get("type")) and base["type"] != own["type"]:
        return dict(own), origins
    # Mappings are merged recursively; any other value of the stage replaces the shared one.
    for key, value in base.items():
        override = own.get(key)
        if isinstance(value, Mapping) and isinstance(override, Mapping):
            merged[key], inner = _merge(value, (*base_at, key), override, (*own_at, key), (*at, key))
            origins |= inner
        elif key in own:
            merged[key] = override
        else:
            merged[key] = value
            origins[*at, key] = (*base_at, key)
    return merged | {key: value for key, value in own.items() if key not in base}, origins
