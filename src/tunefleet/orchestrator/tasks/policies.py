"""The columns of a task that come from its spec: what it needs, and how it is retried and limited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from tunefleet.db import Connection
from tunefleet.db.repositories import tasks
from tunefleet.errors import SpecError
from tunefleet.orchestrator.tasks import requirements
from tunefleet.placement import LIGHT_KINDS, Requirement, only
from tunefleet.spec import BaseTaskSpec, TaskNode, load_task_spec

# What of a spec decides how its task is queued and tried again, and who is told of it.
_COMMON: Final = ("priority", "limits", "retry", "on_lost", "resources", "engine", "sloSeconds", "notify")


def columns(spec: BaseTaskSpec, need: Requirement, now: float, submitted_at: float | None = None) -> dict[str, Any]:
    """Return the columns of a task that its spec decides."""
    load = spec.resources.estimated_load
    due_at = None if spec.slo_s is None else (submitted_at or now) + spec.slo_s
    return {
        "slot_class": need.slot_class, "priority": spec.priority, "rank": rank(now, spec.priority, load, due_at),
        "requirement_key": need.key, "max_attempts": spec.retry.max_attempts, "backoff_s": spec.retry.backoff_s,
        "retry_on": ",".join(spec.retry.on), "on_lost": spec.on_lost, "max_runtime_s": spec.limits.max_runtime_s,
    }  # fmt: skip


def need_of(spec: BaseTaskSpec, task_id: str) -> Requirement:
    """Return what a task needs of a worker; one that has an engine runs on workers that are started for it alone."""
    need = requirements.of(spec)
    return need if spec.engine is None else replace(need, tags=(*need.tags, only(task_id)))


def queue_deadline(spec: BaseTaskSpec, now: float) -> float | None:
    """Return until when a task that is ready now may wait in the queue; null if it waits for ever."""
    wait_s = spec.limits.max_queue_s
    return None if wait_s is None else now + wait_s


def so_far(raw: Mapping[str, Any]) -> tuple[BaseTaskSpec, Requirement]:
    """Return what is known of a task whose spec still has references.

    Returns:
        The blocks that every kind has, and the need, both without what the references will tell.
    """
    kind, known = str(raw["taskType"]), _known(raw)
    try:
        spec = load_task_spec(known)
    except SpecError:
        # What a reference stands for is required.
        need = Requirement(kind=kind, slot_class="light" if kind in LIGHT_KINDS else "job")
        return _common(kind, known), need
    return spec, requirements.of(spec)


def known(node: TaskNode) -> BaseTaskSpec:
    """Return the spec of a task, or as much of it as is known before its references are."""
    return node.spec if node.spec is not None else so_far(node.raw)[0]


def _common(kind: str, known: Mapping[str, Any]) -> BaseTaskSpec:
    blocks = {key: known[key] for key in _COMMON if key in known}
    try:
        return BaseTaskSpec.model_validate({"taskType": kind, **blocks}, by_alias=True, by_name=False)
    except ValidationError:
        return BaseTaskSpec(task_type=kind)


def _known(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _known(each) for key, each in value.items() if not _refers(each)}
    if isinstance(value, list | tuple):
        return [_known(each) for each in value if not _refers(each)]
    return value


def _refers(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def store(connection: Connection, need: Requirement) -> None:
    """Store what a task needs, unless a task with the same needs was there before."""
    tasks.add_requirement(connection, need.key, need.dump())


# How many seconds of waiting one point of priority is worth.
PRIORITY_S: Final = 600.0
# Tasks without a deadline are treated as if they were due so long after they were queued.
DUE_S: Final = 3600.0
_LOAD_S: Final = 1e-6
_MAX_LOAD: Final = 1000


def rank(queued_at: float, priority: int, load: int = 0, due_at: float | None = None) -> float:
    """Return a task's place in the queue; lower goes first.

        rank = min(queued_at, due_at − 3600) − 600·priority − load/1,000,000

    All tasks age alike, so that priority and waiting make up one number that never changes. A task that is due counts
    as queued an hour before that moment, if that is earlier than it was: of those the one with the nearest deadline
    goes first, as if every other task were due an hour after it was queued. Load decides only between those that are
    queued at the same moment: the heavier goes first, so that the long ones do not come last.

    Args:
        load: How heavy it is, in any unit; what is above 1000 counts as 1000.
        due_at: Unix time at which it should be done; null if nobody said.
    """
    since = queued_at if due_at is None else min(queued_at, due_at - DUE_S)
    return since - priority * PRIORITY_S - min(load, _MAX_LOAD) * _LOAD_S
