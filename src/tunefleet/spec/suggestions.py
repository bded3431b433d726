"""Which known word was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

_MAX_KNOWN: Final = 200
_MAX_CHARACTERS: Final = 64
"""Looking further takes longer than it helps."""


def nearest(word: str, known: Mapping[str, Any] | set[str] | list[str]) -> str | None:
    """Return the known word that was probably meant; None if there is none, or there are too many to look through."""
    if len(known) > _MAX_KNOWN or len(word) > _MAX_CHARACTERS:
        return None
    plain = {_plain(name): name for name in known}
    exact = plain.get(_plain(word))
    if exact is not None:
        return exact
    close = difflib.get_close_matches(_plain(word), plain, n=1, cutoff=0.7)
    return plain[close[0]] if close else None


def _plain(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")
