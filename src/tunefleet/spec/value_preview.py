"""Lists of errors as messages show them, and the nearest known word."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tunefleet.errors import Fault

# Errors reported per workflow file: more are of no use, and the search for the nearest key takes time.
MAX_FAULTS: Final = 200
# `get_close_matches` compares every pair of words, which takes long for many or long ones.
_MAX_KNOWN: Final = 200
_MAX_CHARACTERS: Final = 64


@dataclass(frozen=True)
class More(Fault):
    """Stands for errors that are not listed individually.

    Args:
        count: Number of errors; 0 if unknown because validation stopped.
    """

    count: int = 0


def more(count: int, at: Fault, *, path: str = "") -> More:
    """Return an entry for further errors.

    Args:
        count: Number of errors; 0 if unknown.
        at: An error at their position.
        path: Their path, if known.
    """
    word = "error" if count == 1 else "errors"
    message = f"and {count:,} more {word}" if count else "and there may be more: the rest was not checked"
    return More(path, message, at.line, at.column, count=count)


def first_faults(faults: Sequence[Fault]) -> list[Fault]:
    """Return the first errors in the order of the text, and an entry for the rest."""
    known = sorted((each for each in faults if not isinstance(each, More)), key=_position)
    rest = sorted((each for each in faults if isinstance(each, More)), key=_position)
    shown, left = known[:MAX_FAULTS], known[MAX_FAULTS:]
    if not (left or rest):
        return shown
    # A single unknown count makes the total unknown.
    count = 0 if any(each.count == 0 for each in rest) else len(left) + sum(each.count for each in rest)
    last = more(count, min([*left, *rest], key=_position))
    return [*shown, replace(last, hint="fix these first")]


def _position(fault: Fault) -> tuple[int, int]:
    return fault.line, fault.column


def nearest(word: str, known: Mapping[str, Any] | set[str] | list[str]) -> str | None:
    """Return the known word that was probably meant; `None` if there is none, or too many to compare."""
    if len(known) > _MAX_KNOWN or len(word) > _MAX_CHARACTERS:
        return None
    # Case, dashes and underscores are the most frequent differences, so they are ignored.
    plain = {_plain(name): name for name in known}
    exact = plain.get(_plain(word))
    if exact is not None:
        return exact
    close = difflib.get_close_matches(_plain(word), plain, n=1, cutoff=0.7)
    return plain[close[0]] if close else None


def _plain(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")
