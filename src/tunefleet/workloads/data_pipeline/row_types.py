"""A row between the steps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tunefleet.analysis.dataset.messages import RowError

_MISSING: Final = object()
_INDEX: Final = re.compile(r"-?\d{1,9}")


class Row(NamedTuple):
    """A row, with its source."""

    values: dict[str, Any]
    source: int
    number: int


def value_of(values: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column; `a.0.b` indexes lists and mappings if no column has that name."""
    found = lookup(values, column)
    if found is _MISSING:
        raise RowError(f"it has no column {column!r}; it has {', '.join(map(str, values)) or 'none'}")
    return found


def has(values: Mapping[str, Any], column: str) -> bool:
    """Return whether a row has a column."""
    return lookup(values, column) is not _MISSING


def lookup(values: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column, or the sentinel `_MISSING`."""
    if column in values:
        return values[column]
    found: Any = values
    for part in column.split("."):
        if isinstance(found, Mapping):
            found = found.get(part, _MISSING)
        elif isinstance(found, list) and _INDEX.fullmatch(part) and -len(found) <= int(part) < len(found):
            found = found[int(part)]
        else:
            return _MISSING
    return found
