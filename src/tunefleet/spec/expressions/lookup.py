"""Values in the stored results of other tasks, and `spec.condition` on one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import AfterValidator, BeforeValidator

from tunefleet.errors import ReferenceFault
from tunefleet.spec.base import Block, Text, wrong
from tunefleet.spec.expressions.placeholders import Reference, path_hint, reference
from tunefleet.spec.expressions.size_limits import SizeBudget
from tunefleet.spec.value_preview import nearest
from tunefleet.validation_errors import cut, show

# Name → stored result `{task_id, worker_id, metadata, received_at, result}`.
Envelopes = Mapping[str, Mapping[str, Any]]
# Keys listed in a message.
_SHOWN_KEYS: Final = 12
# Characters of a value in a message; results may be large.
_SHOWN_CHARACTERS: Final = 100


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


def _path(value: str) -> str:
    if reference("node", value) is None:
        raise wrong("is not a path", path_hint(value))
    return value


def _single(value: Any) -> Any:
    if not isinstance(value, str | int | float | bool):
        raise wrong(
            f"must be a string, a number, true or false, not {show(value)}", "compare a field with such a value"
        )
    return value


def _no_reference(value: Any) -> Any:
    if isinstance(value, str) and "${" in value:
        raise wrong("cannot be a reference", "write the value itself")
    return value


class ConditionSpec(Block):
    """`spec.condition`: run the task only if an upstream result has a given value; otherwise skip it."""

    node: Text
    """Stage or node whose result is compared; becomes a dependency. If it was skipped, this task is skipped too."""
    field: Annotated[Text, AfterValidator(_path)]
    """Path in that result, such as `items.0.output` or `metrics["eval.loss"]`. If the field does not exist, the task
    fails, so that a misspelled path is not mistaken for an unmet condition. Null never matches."""
    equals: Annotated[str | int | float | bool, BeforeValidator(_single), AfterValidator(_no_reference)]
    """Expected value; a string never equals a number."""
    on_skipped: Literal["skip", "run"] | None = None
    """What happens to dependent tasks if this task is skipped: `skip` them too, or `run` them without its result.
    Default: `skip`; in workflow files with `apiVersion: flowmesh/v1`, `run`."""

    @property
    def reference(self) -> Reference:
        """The reference to the compared value."""
        found = reference(self.node, self.field)
        assert found is not None, "the field was validated"
        return found


def unmet(condition: ConditionSpec, envelope: Mapping[str, Any]) -> str | None:
    """Return why a task does not run; `None` if it runs.

    Args:
        envelope: The stored upstream result: `{task_id, worker_id, metadata, received_at, result}`.

    Raises:
        ReferenceFault: If the result has no such field.
    """
    # A missing field is an error: a misspelled one would look like an unmet condition, and skip half a pipeline.
    expected = condition.equals
    try:
        value = look_up(condition.reference, {condition.node: envelope}, null=True)
    except ReferenceFault as fault:
        raise ReferenceFault(f"Its condition cannot be evaluated: {fault.message}", hint=fault.hint) from None
    if _equal(value, expected):
        return None
    return f"Its condition is not met: {condition.node}.{condition.field} is {_shown(value)}, not {_shown(expected)}."


def _equal(value: Any, expected: str | float | bool) -> bool:
    # In Python `True == 1`, which must not hold here.
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, int | float) and isinstance(expected, int | float):
        return value == expected
    return isinstance(value, str) and value == expected


def _shown(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
