"""Column types of a table: the narrowest type that holds every value unchanged.

A type is None (only null values so far), a name in `_ARROW`, a list with the type of its items, or a mapping
with the type of each key.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

Type = Any

# Up to here a float represents every integer exactly.
_EXACT: Final = 2**53
_ARROW: Final = {
    "true or false": pa.bool_(),
    "text": pa.string(),
    "float": pa.float64(),
    "int": pa.int64(),
    "negative int": pa.int64(),
    "int beyond 53 bits": pa.int64(),
    "negative int beyond 53 bits": pa.int64(),
    "int beyond 63 bits": pa.uint64(),
}
_FROM: Final = {
    "float": ("int", "negative int"),
    "negative int": ("int",),
    "int beyond 53 bits": ("int",),
    "negative int beyond 53 bits": ("int", "negative int", "int beyond 53 bits"),
    "int beyond 63 bits": ("int", "int beyond 53 bits"),
}
"""Type → narrower types whose values it can all hold."""
_WIDER: Final = {frozenset({wide, narrow}): wide for wide, all_ in _FROM.items() for narrow in all_} | {
    frozenset({"negative int", "int beyond 53 bits"}): "negative int beyond 53 bits",
}


class TypeClash(Exception):
    """A value has no common type with those before it."""

    def __init__(self, path: str, known: str, new: str) -> None:
        super().__init__(f"{path}: {known}, {new}")
        self.path = path
        self.known = known
        self.new = new


def widened(known: Type, value: Any, path: str) -> Type:
    """Return the type that also holds a value; lists and mappings of `known` are changed in place."""
    if value is None:
        return known
    if isinstance(value, dict):
        known = {} if known is None else known
        if not isinstance(known, dict):
            raise TypeClash(path, _word(known), "mapping")
        for name, each in value.items():
            known[name] = widened(known.get(name), each, f"{path}.{name}")
        return known
    if isinstance(value, list):
        known = [None] if known is None else known
        if not isinstance(known, list):
            raise TypeClash(path, _word(known), "list")
        for each in value:
            known[0] = widened(known[0], each, f"{path}[]")
        return known
    new = _name(value)
    if known is None or known == new:
        return new
    both = _WIDER.get(frozenset({known, new})) if isinstance(known, str) else None
    if both is None:
        raise TypeClash(path, _word(known), new)
    return both


def arrow(found: Type, path: str) -> pa.DataType:
    """Return the Arrow type.

    Raises:
        TypeClash: If there are only mappings without keys, which Parquet does not support.
    """
    if isinstance(found, dict):
        if not found:
            raise TypeClash(path, "mapping without any key", "mapping without any key")
        return pa.struct([(name, arrow(each, f"{path}.{name}")) for name, each in found.items()])
    if isinstance(found, list):
        return pa.list_(arrow(found[0], f"{path}[]"))
    return pa.null() if found is None else _ARROW[found]


def _name(value: bool | str | float) -> str:
    # bool is an int in Python, so it comes first.
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, str):
        return "text"
    if isinstance(value, float):
        return "float"
    if value < 0:
        return "negative int" if value >= -_EXACT else "negative int beyond 53 bits"
    if value <= _EXACT:
        return "int"
    return "int beyond 53 bits" if value < 2**63 else "int beyond 63 bits"


def _word(known: Type) -> str:
    return known if isinstance(known, str) else "mapping" if isinstance(known, dict) else "list"
