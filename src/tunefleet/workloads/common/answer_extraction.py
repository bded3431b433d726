"""Extracts the part of an answer to compare: the final number, the match of a pattern, or the full text."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Final

from tunefleet.spec.options.answer_match import MatchSpec

_MARK: Final = "####"
_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_QUOTED: Final = 80
NUMBER: Final = re.compile(
    # A minus after any of these is a dash or a subtraction: 3-7, $18-$20, 5%-6%, f(x)-2.
    r"(?:(?<![\w$€£%)])-(?:[$€£]\s?)?|[$€£]\s?-?)?"
    r"(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?%?"
)
# Bounds the length of the normal form: a model may write `1e999999999`, which would fill the memory.
_MAX_DIGITS: Final = 400


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of one answer with its reference.

    Args:
        found: The extracted part of the answer; None if there is none.
    """

    found: str | None
    wanted: str
    right: bool


def final_number(text: str) -> str | None:
    """Return the number after the first `####` that has one, as in GSM8K; without `####`, the last number."""
    # The first, as in lm-eval's strict match: a model that does not stop continues with another question and answer.
    _, *marked = text.split(_MARK)
    if not marked:
        return last_number(text)
    found = (NUMBER.search(rest.split("\n", 1)[0]) for rest in marked)
    return next((number(each[0]) for each in found if each), None)


def extractor(match: MatchSpec) -> Callable[[str], str | None]:
    """Return a function that extracts the part of an answer to compare, or None, which is never right."""
    take = _extractor(match)
    return lambda text: take(without_reasoning(text))


def without_reasoning(text: str) -> str:
    """Return a text from the end of its reasoning on (`</think>`), which some models write before the answer."""
    # Chat templates insert an empty block even without reasoning.
    return text.rpartition("</think>")[2]


def _extractor(match: MatchSpec) -> Callable[[str], str | None]:
    if match.extract == "gsm8k":
        return final_number
    if match.extract == "number":
        return last_number
    if match.extract == "text":
        return lambda text: plain(text, match) or None
    pattern = re.compile(match.pattern or "", re.DOTALL)

    def by_pattern(text: str) -> str | None:
        found: list[str] = pattern.findall(text)
        if not found:
            return None
        return number(found[-1]) or plain(found[-1], match) or None

    return by_pattern


def plain(text: str, match: MatchSpec) -> str:
    """Normalize a text according to the options of a match."""
    if match.ignore_case:
        text = text.casefold()
    if match.ignore_punctuation:
        text = text.translate(_NO_PUNCTUATION)
    return " ".join(text.split()) if match.ignore_space else text


def compare(answer: str, reference: str, match: MatchSpec) -> Comparison | None:
    """Compare an answer with the reference answer of its row.

    Returns:
        The comparison; `None` if nothing can be extracted from the reference answer.
    """
    take = extractor(match)
    wanted = take(reference)
    if wanted is None:
        return None
    found = take(answer)
    return Comparison(found, wanted, found == wanted)


def beginning(text: str) -> str:
    """Return the beginning of a text in quotes, for messages."""
    return repr(text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…")


def ending(text: str) -> str:
    """Return the end of a text in quotes, for messages; of a prompt with its answer, this is the answer."""
    return repr(text if len(text) <= _QUOTED else f"…{text[-_QUOTED:]}")


def number(text: str) -> str | None:
    """Return a number in normal form: no commas, currency signs, percent signs, plus signs or trailing zeros."""
    plain = re.sub(r"[,$€£%\s]", "", text).rstrip(".")
    if not plain or len(plain) > _MAX_DIGITS:
        return None
    try:
        value = Decimal(plain)
    except InvalidOperation:
        return None
    if not value.is_finite() or abs(value.adjusted()) > _MAX_DIGITS:
        return None
    if not value:
        return "0"
    whole = f"{value:f}"
    return whole.rstrip("0").rstrip(".") if "." in whole else whole


def last_number(text: str) -> str | None:
    """Return the last number of a text in normal form."""
    found = NUMBER.findall(text)
    return number(found[-1]) if found else None
