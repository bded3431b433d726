"""Merge the results of a task's shards, in their order. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_LISTED: Final = "items"
_SUMMED: Final = "usage"
_EXPORT: Final = "jsonl_export"
_COUNTS: Final = ("count", "record_count")
Results = Sequence[Mapping[str, Any]]


def exported(results: Results) -> list[Mapping[str, Any]] | None:
    """Return the exports of all shards; None if one has not uploaded its file."""
    found = [each.get(_EXPORT) for each in results]
    exports = [each for each in found if isinstance(each, Mapping) and isinstance(each.get("artifact_name"), str)]
    return exports if exports and len(exports) == len(results) else None


def merge(results: Results, joined: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Merge the results of shards.

    Args:
        results: The results, in the order of the shards.
        joined: Keys of the merged file, for `jsonl_export`.

    Returns:
        `items` concatenated, with `index` renumbered; their `count`; the sum of `usage`; `jsonl_export` with the keys
        of `joined`, the number of records and the exports as `parts`; any other key on which all shards agree.
    """
    if not results:
        return {}
    merged = {key: value for key, value in results[0].items() if all(_same(key, value, each) for each in results)}
    if all(isinstance(each.get(_LISTED), list) for each in results):
        merged[_LISTED] = _renumbered([item for each in results for item in each[_LISTED]])
        if any("count" in each for each in results):
            merged["count"] = len(merged[_LISTED])
    usage = [each[_SUMMED] for each in results if isinstance(each.get(_SUMMED), Mapping)]
    if usage:
        merged[_SUMMED] = _sum(usage)
    exports = [each[_EXPORT] for each in results if isinstance(each.get(_EXPORT), Mapping)]
    if exports:
        merged[_EXPORT] = {**_agreed(exports), **(joined or {}), "parts": exports}
    return merged


def _same(key: str, value: Any, other: Mapping[str, Any]) -> bool:
    return key in other and other[key] == value


def _agreed(exports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = exports[0]
    agreed = {key: value for key, value in first.items() if all(_same(key, value, each) for each in exports)}
    for name in _COUNTS:
        numbers = [each[name] for each in exports if isinstance(each.get(name), int)]
        if len(numbers) == len(exports):
            agreed[name] = sum(numbers)
    return agreed


def _renumbered(items: list[Any]) -> list[Any]:
    return [
        {**item, "index": number} if isinstance(item, Mapping) and "index" in item else item
        for number, item in enumerate(items)
    ]


def _sum(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add numbers of the same name; of any other value the first is kept."""
    total: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            before = total.get(key)
            if _number(value) and (before is None or _number(before)):
                total[key] = (before or 0) + value
            elif isinstance(value, Mapping):
                total[key] = _sum([before, value] if isinstance(before, Mapping) else [value])
            else:
                total.setdefault(key, value)
    return total


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
