"""The `filter` step: structured conditions, so that no code of a workflow file is executed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tunefleet.analysis.dataset.messages import RowError, kind_of
from tunefleet.spec.tasks.data_steps import ConditionBlock
from tunefleet.workloads.data_pipeline.row_types import has, value_of

# Counts the tokens of a text.
Counter = Callable[[str], int]


def holds(condition: ConditionBlock, values: Mapping[str, Any], tokens: Counter) -> bool:
    """Return whether a condition holds for a row.

    Raises:
        RowError: If the row lacks the column, or its value cannot be compared.
    """
    parts = (
        condition.all_of is None or all(holds(each, values, tokens) for each in condition.all_of),
        condition.any_of is None or any(holds(each, values, tokens) for each in condition.any_of),
        condition.none_of is None or not holds(condition.none_of, values, tokens),
    )
    return all(parts) and all(
        _check(name, wanted, condition.column or "", values, tokens) for name, wanted in condition.checks.items()
    )


def _check(name: str, wanted: Any, column: str, values: Mapping[str, Any], tokens: Counter) -> bool:
    if name == "not_empty":
        return (has(values, column) and _filled(value_of(values, column))) == wanted
    value = value_of(values, column)
    bound, _, what = name.partition("_")
    if what in _SIZES:
        size = tokens(_text(value, column)) if what == "tokens" else _SIZES[what](value, column)
        return bool(size >= wanted if bound == "min" else size <= wanted)
    return bool(_CHECKS[name](value, wanted, column))


def _filled(value: Any) -> bool:
    return bool(value.strip()) if isinstance(value, str) else value is not None and value not in ([], {})


def _text(value: Any, column: str) -> str:
    if not isinstance(value, str):
        raise RowError(f"{column!r} holds {kind_of(value)}, not a text")
    return value


def _items(value: Any, column: str) -> int:
    if not isinstance(value, list):
        raise RowError(f"{column!r} holds {kind_of(value)}, not a list")
    return len(value)


def _number(value: Any, column: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RowError(f"{column!r} holds {kind_of(value)}, not a number")
    return value


def _same(value: Any, wanted: Any) -> bool:
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)


_SIZES: Final[dict[str, Callable[[Any, str], int]]] = {
    "chars": lambda value, column: len(_text(value, column)),
    "words": lambda value, column: len(_text(value, column).split()),
    "tokens": lambda value, column: len(_text(value, column)),
    "items": _items,
}
_CHECKS: Final[dict[str, Callable[[Any, Any, str], bool]]] = {
    "equals": lambda value, wanted, _: _same(value, wanted),
    "not_equals": lambda value, wanted, _: not _same(value, wanted),
    "one_of": lambda value, wanted, _: any(_same(value, each) for each in wanted),
    "not_one_of": lambda value, wanted, _: not any(_same(value, each) for each in wanted),
    "gt": lambda value, wanted, column: _number(value, column) > wanted,
    "ge": lambda value, wanted, column: _number(value, column) >= wanted,
    "lt": lambda value, wanted, column: _number(value, column) < wanted,
    "le": lambda value, wanted, column: _number(value, column) <= wanted,
    "matches": lambda value, wanted, column: re.search(wanted, _text(value, column)) is not None,
    "not_matches": lambda value, wanted, column: re.search(wanted, _text(value, column)) is None,
}
