"""`spec.condition`: whether a task runs at all, judged by the result of a task before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from tunefleet.spec.base import Block, Text, wrong
from tunefleet.spec.lookup import look_up
from tunefleet.spec.placeholders import Reference, reference


def _path(value: str) -> str:
    if reference("node", value) is None:
        raise wrong("is not a path", "write it like result.items[0].output; `result.` may be left out")
    return value


def _no_reference(value: Any) -> Any:
    if isinstance(value, str) and "${" in value:
        raise wrong("cannot be a reference", "write the wanted value itself")
    return value


class ConditionSpec(Block):
    """`spec.condition`: the task runs only if a value of an upstream result is the wanted one; else it is skipped."""

    node: Text
    """Stage or node whose result decides; the task depends on it."""
    field: Annotated[Text, AfterValidator(_path)]
    """Path in its result, such as `items.0.output` or `metrics["eval.loss"]`."""
    equals: Annotated[str | int | float | bool, AfterValidator(_no_reference)]
    """The wanted value; a text is never equal to a number."""

    @property
    def reference(self) -> Reference:
        """The value that decides."""
        found = reference(self.node, self.field)
        assert found is not None, "the field was validated"
        return found


def judge(condition: ConditionSpec, envelope: Mapping[str, Any]) -> bool:
    """Say whether a task runs.

    Args:
        condition: Of the task.
        envelope: The stored result of the task that decides: `{task_id, worker_id, metadata, received_at, result}`.

    Raises:
        ReferenceFault: If the result has no such value. A wrong path would otherwise look like a condition that is not
            met.
    """
    value = look_up(condition.reference, {condition.node: envelope})
    wanted = condition.equals
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, int | float) and isinstance(wanted, int | float):
        return value == wanted
    return isinstance(value, str) and value == wanted
