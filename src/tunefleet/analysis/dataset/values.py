"""What is in a row, in words, and what is wrong with one."""

from __future__ import annotations

from typing import Any


class RowError(Exception):
    """A row is not what it should be; the message says what of it is wrong."""


def kind_of(value: Any) -> str:
    """Say what a value is, in words."""
    names = {type(None): "nothing (null)", list: "a list", dict: "a mapping", bool: "true or false", str: "a text"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")
