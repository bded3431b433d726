"""Numbers in answers, in one spelling: what is rewarded as right is then measured as right."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Final

NUMBER: Final = re.compile(
    # A minus behind any of these is a dash, or takes away: 3-7, $18-$20, 5%-6%, f(x)-2.
    r"(?:(?<![\w$€£%)])-(?:[$€£]\s?)?|[$€£]\s?-?)?"
    r"(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?%?"
)
_MAX_DIGITS: Final = 400


def number(text: str) -> str | None:
    """Return a number in one spelling: no commas, currency signs, per cent signs, plus signs or trailing zeros.

    Returns:
        `None` if the text is none.
    """
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
    """Return the last number of a text, in one spelling."""
    found = NUMBER.findall(text)
    return number(found[-1]) if found else None
