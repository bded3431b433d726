"""How messages quote what a model was given, or has answered: in one line, and not all of it."""

from __future__ import annotations

from typing import Final

_QUOTED: Final = 80


def beginning(text: str) -> str:
    """Return the beginning of a text, in quotes."""
    return repr(text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…")


def ending(text: str) -> str:
    """Return the end of a text, in quotes: of a prompt with its answer that is the answer."""
    return repr(text if len(text) <= _QUOTED else f"…{text[-_QUOTED:]}")
