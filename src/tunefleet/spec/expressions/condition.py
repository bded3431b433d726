"""`spec.condition`: run a task only if an upstream result has a given value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import AfterValidator, BeforeValidator

from tunefleet.errors import ReferenceFault
from tunefleet.spec.base import Block, Text, wrong
from tunefleet.spec.expressions.lookup import look_up
from tunefleet.spec.expressions.placeholders import Reference, path_hint, reference
from tunefleet.validation_errors import show

# Characters of a value in a message; results may be large.
_SHOWN_CHARACTERS: Final = 100


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
