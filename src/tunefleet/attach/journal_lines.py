"""How a record of the journal becomes a line of JSON: every number that was logged, and nothing that JSON has not."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Mapping
from math import isfinite
from typing import Any

logger = logging.getLogger(__name__)

_NOT_A_NUMBER = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def number(value: float) -> float | str:
    """Return a number as JSON can hold it: `NaN`, `Infinity` and `-Infinity` become strings."""
    return value if isfinite(value) else _NOT_A_NUMBER[str(value)]


def plain_values(values: Mapping[str, Any]) -> dict[str, float | str]:
    """Return what of a `logs` dictionary can be recorded, without asking a device for anything.

    A tensor on a GPU would have to be waited for, so it is left out; numbers of NumPy and of torch on the CPU count.
    """
    plain: dict[str, float | str] = {}
    for name, value in values.items():
        kind = type(value)
        if kind is float:
            plain[name] = value if isfinite(value) else number(value)
        elif kind is int or kind is str:
            plain[name] = value
        elif kind is bool or getattr(getattr(value, "device", None), "type", "cpu") == "cpu":
            try:
                plain[name] = number(float(value))
            except (TypeError, ValueError):
                logger.debug("The value of %s is no number and is not recorded", name)
    return plain


def line_of(record: dict[str, Any]) -> bytes:
    """Encode a record; one that cannot be is replaced, since a missing number would look like a lost record.

    The line ends with the CRC-32 of what it says without it: `jobs.journal_audit` tells by it what a disk has damaged.
    """
    try:
        text = json.dumps(record, separators=(",", ":"), allow_nan=False, default=_plain)
    except (TypeError, ValueError):
        try:
            text = json.dumps(_without_nan(record), separators=(",", ":"), allow_nan=False, default=_plain)
        except (TypeError, ValueError, RecursionError) as error:
            text = json.dumps(_unwritable(record, error), separators=(",", ":"))
    plain = text.encode()
    return plain[:-1] + b',"crc":%d}\n' % zlib.crc32(plain)


def _plain(value: Any) -> Any:
    # A scalar of NumPy or of torch; anything else is described.
    item = getattr(value, "item", None)
    try:
        return str(value) if item is None else _without_nan(item())
    except (TypeError, ValueError, RuntimeError):
        return str(value)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return number(float(value))
    if isinstance(value, Mapping):
        return {str(name): _without_nan(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return value


def _unwritable(record: dict[str, Any], error: Exception) -> dict[str, Any]:
    message = f"A record of type {record['type']} could not be written: {error}"
    fields = {"name": "journal.unwritable", "message": message, "level": "warning", "data": {}}
    return {"seq": record["seq"], "at": record["at"], "type": "event", **fields}
