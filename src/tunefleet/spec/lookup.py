"""Looking a value up in the stored results of other tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from tunefleet.errors import ReferenceFault
from tunefleet.spec.placeholders import Reference
from tunefleet.spec.words import nearest

Envelopes = Mapping[str, Mapping[str, Any]]
"""Name → stored result `{task_id, worker_id, metadata, received_at, result}`."""

_SHOWN_KEYS: Final = 12


def look_up(reference: Reference, envelopes: Envelopes) -> Any:
    """Return the value that a reference names, with its own type.

    Args:
        reference: What to look up. A key of a list of mappings gives the list of what each has under it. `NAME_archive`
            finds `NAME_archive_url`, too.
        envelopes: The results of the tasks before.

    Raises:
        ReferenceFault: If there is no such value, or it is null; names what is there instead.
    """
    if reference.node not in envelopes:
        known = ", ".join(envelopes) or "none"
        raise ReferenceFault(f"{reference.text} names a task that has no result here.", hint=f"Results: {known}.")
    value: Any = envelopes[reference.node]
    for depth, part in enumerate(reference.path):
        value = _step(value, part, reference, depth)
    if value is None:
        raise ReferenceFault(f"{reference.text} has no value: it is null in the result of {reference.node}.")
    return value


def as_text(value: Any) -> str:
    """Return a value as it stands inside a text: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _step(value: Any, part: str, reference: Reference, depth: int) -> Any:
    if isinstance(value, Mapping):
        if part in value:
            return value[part]
        if part.endswith("_archive") and f"{part}_url" in value:
            return value[f"{part}_url"]
        raise _missing(reference, depth, f"has no {part!r}", _keys(part, value))
    if isinstance(value, list | tuple):
        if part.isascii() and part.isdecimal() and int(part) < len(value):
            return value[int(part)]
        if value and all(isinstance(each, Mapping) and part in each for each in value):
            return [each[part] for each in value]
        count = "is empty" if not value else f"has {len(value)} entries, counted from 0"
        raise _missing(reference, depth, f"{count}, and {part!r} is none of them", None)
    kind = "null" if value is None else "a text" if isinstance(value, str) else "a single value"
    raise _missing(reference, depth, f"is {kind}, which has no {part!r}", None)


def _missing(reference: Reference, depth: int, problem: str, hint: str | None) -> ReferenceFault:
    above = ".".join(reference.path[:depth])
    where = f"{above} of {reference.node}" if above else f"the stored result of {reference.node}"
    return ReferenceFault(f"{reference.text} has no value: {where} {problem}.", hint=hint)


def _keys(part: str, value: Mapping[str, Any]) -> str:
    names = [str(name) for name in value]
    guess = nearest(part, names)
    if guess:
        return f"Did you mean {guess}?"
    more = ", …" if len(names) > _SHOWN_KEYS else ""
    return f"It has {', '.join(names[:_SHOWN_KEYS])}{more}." if names else "It is empty."
