"""`spec.condition`: whether a task runs at all, judged by the result of a task before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import AfterValidator, BeforeValidator

from tunefleet.errors import ReferenceFault
from tunefleet.spec.base import Block, Text, wrong
from tunefleet.spec.expressions.lookup import look_up
from tunefleet.spec.expressions.placeholders import Reference, path_hint, reference
from tunefleet.spec.value_preview import show

_SHOWN_CHARACTERS: Final = 100


def _path(value: str) -> str:
    if reference("node", value) is None:
        raise wrong("is not a path", path_hint(value))
    return value


def _single(value: Any) -> Any:
    if not isinstance(value, str | int | float | bool):
        raise wrong(
            f"must be a text, a number, or true or false, not {show(value)}", "name a field that is one of them"
        )
    return value


def _no_reference(value: Any) -> Any:
    if isinstance(value, str) and "${" in value:
        raise wrong("cannot be a reference", "write the wanted value itself")
    return value


class ConditionSpec(Block):
    """`spec.condition`: the task runs only if a value of an upstream result is the wanted one; else it is skipped."""

    node: Text
    """Stage or node whose result decides; the task depends on it. If that one was skipped, so is this task."""
    field: Annotated[Text, AfterValidator(_path)]
    """Path in its result, such as `items.0.output` or `metrics["eval.loss"]`. If the result has no such field, the task
    fails: a misspelt path must not look like a condition that is not met. Null is a value, and never the wanted one."""
    equals: Annotated[str | int | float | bool, BeforeValidator(_single), AfterValidator(_no_reference)]
    """The wanted value; a text is never equal to a number."""
    on_skipped: Literal["skip", "run"] | None = None
    """What becomes of the tasks that depend on this one if it is skipped: they are skipped too, or they run, without a
    result of it. By default `skip`; in workflow files with `apiVersion: flowmesh/v1` it is `run`."""

    @property
    def reference(self) -> Reference:
        """The value that decides."""
        found = reference(self.node, self.field)
        assert found is not None, "the field was validated"
        return found


def unmet(condition: ConditionSpec, envelope: Mapping[str, Any]) -> str | None:
    """Say why a task does not run, in a sentence; None if it runs.

    Args:
        envelope: The stored result of the task that decides: `{task_id, worker_id, metadata, received_at, result}`.

    Raises:
        ReferenceFault: If the result has no such field. A misspelt one would otherwise look like a condition that is
            not met, and half a pipeline would quietly not run.
    """
    wanted = condition.equals
    try:
        value = look_up(condition.reference, {condition.node: envelope}, null=True)
    except ReferenceFault as fault:
        raise ReferenceFault(f"Its condition cannot be judged: {fault.message}", hint=fault.hint) from None
    if _equal(value, wanted):
        return None
    return f"Its condition is not met: {condition.node}.{condition.field} is {_shown(value)}, not {_shown(wanted)}."


def _equal(value: Any, wanted: str | float | bool) -> bool:
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, int | float) and isinstance(wanted, int | float):
        return value == wanted
    return isinstance(value, str) and value == wanted


def _shown(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
