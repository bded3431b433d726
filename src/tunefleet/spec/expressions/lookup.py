"""Lookup of values in the stored results of other tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from tunefleet.errors import ReferenceFault
from tunefleet.spec.expressions.placeholders import Reference
from tunefleet.spec.expressions.size_limits import SizeBudget
from tunefleet.spec.value_preview import nearest
from tunefleet.validation_errors import cut, show

# Name → stored result `{task_id, worker_id, metadata, received_at, result}`.
Envelopes = Mapping[str, Mapping[str, Any]]

# Keys listed in a message.
_SHOWN_KEYS: Final = 12


def look_up(
    reference: Reference,
    envelopes: Envelopes,
    room: SizeBudget | None = None,
    *,
    null: bool = False,
    hints: bool = True,
) -> Any:
    """Return the value of a reference, with its own type.

    Args:
        reference: What to look up. A key of a list of mappings gives the list of their values. `NAME_archive` is the
            archive's URL, `NAME_archive_url`, if there is one.
        envelopes: The results of the upstream tasks.
        room: Counts the list entries that are visited; the caller counts the value itself.
        null: Whether null is a valid value.
        hints: Whether an error suggests a key; finding one takes longer than the lookup.

    Raises:
        ReferenceFault: If there is no such value or it is null; lists the existing keys. If the limit is exceeded.
    """
    if reference.node not in envelopes:
        known = ", ".join(envelopes) or "none"
        raise ReferenceFault(f"{reference.text} refers to a task without a result.", hint=f"Results: {known}.")
    value: Any = envelopes[reference.node]
    for depth, part in enumerate(reference.path):
        try:
            value = _step(value, part, reference, room)
        except _Missing as missing:
            hint = _hint(reference, depth, value) if hints else None
            raise _fault(reference, depth, missing.problem, hint) from None
    if value is None and not null:
        raise ReferenceFault(f"{reference.text} has no value: it is null in the result of {reference.node}.")
    return value


def as_text(value: Any) -> str:
    """Return a value as text: strings unchanged, other values as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def text_within(room: SizeBudget, what: str, value: Any) -> str:
    """Return a value as text, if it fits into the limit.

    Raises:
        ReferenceFault: If it does not fit.
    """
    before = room.characters
    room.take_value(what, value)
    text = as_text(value)
    room.take(what, characters=len(text) - (before - room.characters))  # JSON adds quotes and separators
    return text


class _Missing(Exception):
    """There is no such value; `problem` completes a sentence about its parent."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def _step(value: Any, part: str, reference: Reference, room: SizeBudget | None) -> Any:
    if isinstance(value, Mapping):
        if part.endswith("_archive") and value.get(f"{part}_url") is not None:
            return value[f"{part}_url"]  # the archive itself is only a file name in the task's folder
        if part in value:
            return value[part]
        raise _Missing(f"has no {show(part)}")
    if isinstance(value, list | tuple):
        return _in_list(value, part, reference, room)
    kind = "null" if value is None else "a string" if isinstance(value, str) else "a single value"
    raise _Missing(f"is {kind}, which has no {show(part)}")


def _in_list(value: Sequence[Any], part: str, reference: Reference, room: SizeBudget | None) -> Any:
    # Python limits the digits that `int()` parses, and no list has that many entries.
    if part.isascii() and part.isdecimal() and len(part.lstrip("0")) <= len(str(len(value))):
        index = int(part.lstrip("0") or "0")
        if index < len(value):
            return value[index]
    # The first entry is tested before the whole list is visited and counted.
    if value and _has(value[0], part):
        if room is not None:
            room.take(reference.text, values=len(value))
        if all(_has(each, part) for each in value):
            return [each[part] for each in value]
    count = "is empty" if not value else f"has {len(value)} entries, counted from 0"
    raise _Missing(f"{count}, and {show(part)} is none of them")


def _has(value: Any, part: str) -> bool:
    return isinstance(value, Mapping) and part in value


def _fault(reference: Reference, depth: int, problem: str, hint: str | None) -> ReferenceFault:
    above = ".".join(reference.path[:depth])
    where = f"{above} of {reference.node}" if above else f"the stored result of {reference.node}"
    return ReferenceFault(f"{reference.text} has no value: {where} {problem}.", hint=hint)


def _hint(reference: Reference, depth: int, value: Any) -> str | None:
    if not isinstance(value, Mapping):
        return None
    return _in_parts(reference, depth, value) or _keys(reference.path[depth], value)


def _in_parts(reference: Reference, depth: int, value: Mapping[str, Any]) -> str | None:
    """Suggest a key that the shards of a task have, but the joined result does not."""
    parts, part = value.get("parts"), reference.path[depth]
    if not isinstance(parts, list) or not parts or not all(isinstance(e, Mapping) and part in e for e in parts):
        return None
    first = ".".join((reference.node, *reference.path[:depth], "parts[0]", part))
    return f"Each of its {len(parts)} shards has one, such as ${{{first}}}; without `parallel` there is a single one."


def _keys(part: str, value: Mapping[str, Any]) -> str:
    names = [str(name) for name in value]
    guess = nearest(part, names)
    if guess:
        return f"Did you mean {guess}?"
    more = ", …" if len(names) > _SHOWN_KEYS else ""
    return f"It has {', '.join(map(cut, names[:_SHOWN_KEYS]))}{more}." if names else "It is empty."
