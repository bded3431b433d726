"""How what people wrote is shown in messages: a value in one line, cut; and no more faults than anybody reads."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tunefleet.errors import Fault

# Of a document: nobody reads more, and looking for the nearest key takes time.
MAX_FAULTS: Final = 200
_MAX_VALUE_CHARACTERS: Final = 60


def cut(text: str, most: int = _MAX_VALUE_CHARACTERS) -> str:
    """Return a text, or its beginning if it is long."""
    return text if len(text) <= most else f"{text[: most - 3]}…"


def show(value: Any) -> str:
    """Return a value as it stands in a message: texts in quotes."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return repr(cut(value))
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case int() if value.bit_length() > 64:  # Python does not write any number of digits
            return "a number of more than 64 bits"
        case _:
            return cut(str(value))


@dataclass(frozen=True)
class More(Fault):
    """Stands for faults that are not told one by one.

    Args:
        count: How many; 0 if that is not known, because nobody looked.
    """

    count: int = 0


def more(count: int, at: Fault, *, path: str = "") -> More:
    """Say that there are more faults.

    Args:
        count: How many; 0 if that is not known.
        at: A fault that has their place.
        path: Where they are, if that is known.
    """
    word = "fault" if count == 1 else "faults"
    message = f"and {count:,} more {word}" if count else "and there may be more: the rest was not looked at"
    return More(path, message, at.line, at.column, count=count)


def first_faults(faults: Sequence[Fault]) -> list[Fault]:
    """Return faults in the order of the text; of many the first ones, and how many more there are."""
    known = sorted((each for each in faults if not isinstance(each, More)), key=_place)
    rest = sorted((each for each in faults if isinstance(each, More)), key=_place)
    shown, left = known[:MAX_FAULTS], known[MAX_FAULTS:]
    if not (left or rest):
        return shown
    count = 0 if any(each.count == 0 for each in rest) else len(left) + sum(each.count for each in rest)
    last = more(count, min([*left, *rest], key=_place))
    return [*shown, replace(last, hint="correct these first")]


def _place(fault: Fault) -> tuple[int, int]:
    return fault.line, fault.column


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
