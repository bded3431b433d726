"""Steps on one row at a time: `filter` with structured conditions, which execute no code, and `map`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tunefleet.analysis.dataset.messages import RowError, kind_of
from tunefleet.spec.tasks.data_steps import SLOT, ChatFieldsSpec, ConditionBlock, MapSpec
from tunefleet.workloads.data_pipeline.row_types import has, value_of

# Counts the tokens of a text.
Counter = Callable[[str], int]
_TRUE: Final = frozenset({"true", "yes", "1"})
_FALSE: Final = frozenset({"false", "no", "0"})


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
        size = tokens(_compared_text(value, column)) if what == "tokens" else _SIZES[what](value, column)
        return bool(size >= wanted if bound == "min" else size <= wanted)
    return bool(_CHECKS[name](value, wanted, column))


def _filled(value: Any) -> bool:
    return bool(value.strip()) if isinstance(value, str) else value is not None and value not in ([], {})


def _compared_text(value: Any, column: str) -> str:
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
    "chars": lambda value, column: len(_compared_text(value, column)),
    "words": lambda value, column: len(_compared_text(value, column).split()),
    "tokens": lambda value, column: len(_compared_text(value, column)),
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
    "matches": lambda value, wanted, column: re.search(wanted, _compared_text(value, column)) is not None,
    "not_matches": lambda value, wanted, column: re.search(wanted, _compared_text(value, column)) is None,
}


def mapped(wanted: MapSpec, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changed row; the keys of a `map` are applied in their order.

    Raises:
        RowError: If the row lacks a column, or a value cannot be changed.
    """
    row = dict(values)
    if wanted.strip:
        for column in [name for name in row if isinstance(row[name], str)] if wanted.strip is True else wanted.strip:
            row[column] = _stripped(value_of(row, column), column)
    for column, kind in (wanted.cast or {}).items():
        row[column] = _cast(value_of(row, column), kind, column)
    if wanted.rename:
        row = _renamed(row, wanted.rename)
    for column, fields in (wanted.chat or {}).items():
        row[column] = [_message(turn, fields, column) for turn in _turns(value_of(row, column), column)]
    if wanted.template:
        # All templates see the unchanged row: the order of a mapping's keys must not matter.
        row |= {column: filled(template, row) for column, template in wanted.template.items()}
    row |= wanted.constant or {}
    for column in wanted.drop or ():
        _own(row, column)
    return _kept(row, wanted)


def filled(template: str, values: Mapping[str, Any]) -> str:
    """Return a template filled with the values of columns.

    Raises:
        RowError: If the row lacks a column, or a value is neither a text nor a number.
    """

    def one(match: Any) -> str:
        if match["column"] is None:
            return str(match[0][0])
        value = value_of(values, match["column"])
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise RowError(f"{match['column']!r} holds {kind_of(value)}, and a template takes texts and numbers")
        return str(value)

    return SLOT.sub(one, template)


def _turns(value: Any, column: str) -> list[Any]:
    if not isinstance(value, list):
        raise RowError(f"{column!r} holds {kind_of(value)}, not a list of messages")
    return value


def _message(turn: Any, fields: ChatFieldsSpec, column: str) -> dict[str, Any]:
    if not isinstance(turn, dict) or fields.role not in turn or fields.content not in turn:
        raise RowError(f"{column!r} has a message without {fields.role!r} and {fields.content!r}")
    speaker = turn[fields.role]
    known = (fields.roles or {}).get(speaker, speaker) if isinstance(speaker, str) else speaker
    return {"role": known, "content": turn[fields.content]}


def _kept(row: dict[str, Any], wanted: MapSpec) -> dict[str, Any]:
    if wanted.drop:
        row = {name: value for name, value in row.items() if name not in wanted.drop}
    if wanted.keep:
        row = {name: _own(row, name) for name in wanted.keep}
    return row


def _own(row: Mapping[str, Any], column: str) -> Any:
    if column not in row:
        raise RowError(f"it has no column {column!r}; it has {', '.join(row) or 'none'}")
    return row[column]


def _renamed(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    for old, new in names.items():
        _own(row, old)
        if new in row and new not in names:
            raise RowError(f"it already has a column {new!r}, so {old!r} cannot be renamed to it")
    return {names.get(name, name): value for name, value in row.items()}


def _stripped(value: Any, column: str) -> str:
    if not isinstance(value, str):
        raise RowError(f"{column!r} holds {kind_of(value)}, not a text")
    return value.strip()


def _bool(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in _TRUE | _FALSE:
        raise ValueError(f"{value!r} is neither true nor false")
    return text in _TRUE


def _cast_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _whole(value: Any) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value} is not an integer")
    whole = int(value)
    # orjson cannot write larger integers.
    if not -(2**63) <= whole < 2**64:
        raise ValueError("it has more than 64 bits")
    return whole


def _float(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not a number in JSON")
    return number


def _json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    # NaN, and numbers that cannot be written back unchanged, are rejected.
    return json.loads(value, parse_int=_whole, parse_float=_float, parse_constant=_float)


_CASTS: Final[dict[str, Callable[[Any], Any]]] = {
    "int": _whole,
    "float": _float,
    "str": _cast_text,
    "bool": _bool,
    "json": _json,
}


def _cast(value: Any, kind: str, column: str) -> Any:
    try:
        return _CASTS[kind](value)
    except (TypeError, ValueError, OverflowError) as error:
        raise RowError(f"{column!r} cannot be read as {kind}: {error}") from None
