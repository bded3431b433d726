"""What a function has returned and left, checked: its result, its numbers, its folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tunefleet.errors import InputError

# Keys of the task's result that are not the function's.
RESERVED: Final = ("ok", "outputs", "run", "files", "children")
_RESULT_BYTES: Final = 16 << 20


def returned(path: Path, emits: Sequence[str]) -> dict[str, Any]:
    """Return what a function has returned, as a mapping with its `metrics`."""
    size_bytes = path.stat().st_size
    if size_bytes > _RESULT_BYTES:
        raise InputError(
            f"The function returned {size_bytes:,} bytes; at most {_RESULT_BYTES:,} are allowed.",
            hint="Write large things into the folder output.",
        )
    value = json.loads(path.read_bytes())
    result: dict[str, Any] = dict(value) if isinstance(value, dict) else {"value": value}
    taken = [name for name in RESERVED if name in result]
    if taken:
        raise InputError(f"The function returned {taken[0]!r}, a name that the task's result has already.")
    metrics = result.get("metrics", {})
    if not isinstance(metrics, Mapping):
        raise InputError("The function returned metrics that are no mapping of names to numbers.")
    for name in emits:
        if name not in metrics:
            raise InputError(f"spec.emits: the function returned no metric {name!r}; it has {_names(metrics)}.")
        number = metrics[name]
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise InputError(f"spec.emits: the metric {name!r} is {number!r}, and not a number.")
    return {**result, "metrics": dict(metrics)}


def size_of(folder: Path) -> int:
    """Return how many bytes lie in a folder; what disappears meanwhile does not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if not path.is_dir() else 0
        except FileNotFoundError:
            continue
    return total


def _names(metrics: Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, metrics))) or "none"
