"""Run tasks again: retry, clone and resume; each makes a workflow of its own, but for the resume of a paused task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tunefleet.db import Connection
from tunefleet.db.rows import TaskRow
from tunefleet.errors import ConflictError, InputError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.access.permissions import Actor, may_submit
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.tasks import checkpoints, tasks
from tunefleet.orchestrator.tasks import commands as task_commands
from tunefleet.orchestrator.tasks import resume as task_resume
from tunefleet.orchestrator.tasks.resume import FromStep
from tunefleet.orchestrator.tasks.tasks import find, find_owned
from tunefleet.orchestrator.workflows import resubmission, workflows
from tunefleet.orchestrator.workflows.submission import Submission
from tunefleet.schemas.api import TaskDetail, WorkflowDetail


async def retry(core: ServerContext, actor: Actor, task_id: str) -> WorkflowDetail:
    """Submit a final task again, unchanged, as a new workflow that starts from the beginning.

    Raises:
        ConflictError: If it has not ended.
        ForbiddenError: If the actor may not submit.
    """
    may_submit(actor)
    row = await core.read(lambda connection: find(connection, actor, task_id))
    if not TaskStatus(row.status).final:
        raise ConflictError(
            f"Run {row.id} is {row.status}.",
            hint=f"Cancel it first with `tunefleet cancel {row.id}`, or run a copy with `tunefleet clone {row.id}`.",
        )
    return await workflows.store(core, await resubmission_of(core, actor, row.id))


async def clone(
    core: ServerContext,
    actor: Actor,
    task_id: str,
    overrides: Mapping[str, Any],
    inputs: Mapping[str, str] = MappingProxyType({}),
) -> WorkflowDetail:
    """Submit a task again with some fields changed, as a new workflow.

    Args:
        overrides: Dotted path below `spec` → value.
        inputs: Changed path of a local file → digest of the uploaded artifact.

    Raises:
        InputError: If an input belongs to no changed field.
        SpecError: If the changed workflow file is invalid.
        ForbiddenError: If the actor may not submit.
    """
    may_submit(actor)
    changed = [path.removeprefix("spec.") for path in overrides]
    for pointer in inputs:
        # Else the files of another owner's task could be exchanged without a changed field, and so without a check.
        if not any(pointer == path or pointer.startswith(f"{path}.") for path in changed):
            raise InputError(f"inputs.{pointer} belongs to no changed field.", hint="Name the field in `overrides`.")
    made = await resubmission_of(core, actor, task_id, overrides)
    with_inputs = {name: {**kept, **inputs} for name, kept in made.inputs.items()}
    return await workflows.store(core, replace(made, inputs=with_inputs))


async def resubmission_of(
    core: ServerContext, actor: Actor, task_id: str, overrides: Mapping[str, Any] | None = None
) -> Submission:
    """Return the submission that runs a task again, as a workflow of its own, with some fields changed."""
    row = await core.read(lambda connection: find(connection, actor, task_id))
    return await resubmission.task_submission(core, actor, row, overrides or {})


async def resume(
    core: ServerContext,
    actor: Actor,
    task_id: str,
    from_step: FromStep = None,
    overrides: Mapping[str, Any] | None = None,
) -> TaskDetail:
    """Resume a task: a paused one returns to its place in the queue, a final one becomes a new task linked to it.

    For a running task with a pause request, the request is cancelled. If the job has already received it, the task
    pauses and is queued again automatically.

    Args:
        from_step: The step of a checkpoint, `best`, or None for the newest.
        overrides: Dotted path below `spec` → value, for the new task of a final one.

    Raises:
        ConflictError: If it is running or queued without a pause request, there is no such checkpoint, or nothing is
            left to do.
        ForbiddenError: If it belongs to another owner.
    """
    may_submit(actor)
    snapshot = cluster_state.fleet_snapshot(core)
    now = snapshot.now

    def operation(connection: Connection) -> TaskRow:
        row = find_owned(connection, actor, task_id)
        if row.status == TaskStatus.RUNNING and row.desired == "pause" and from_step is None:
            task_commands.take_back_pause(connection, row, now)
            return row
        task_resume.refuse_running(row)
        if row.status == TaskStatus.PAUSED:
            # An agent that still has the job continues it in place.
            asked = from_step is None and task_resume.ask_to_resume(connection, row, snapshot)
            if not asked:
                task_resume.requeue(connection, row, from_step, now)
        return row

    row = await core.write(operation)
    if not TaskStatus(row.status).final:
        return await tasks.get(core, actor, row.id)
    return await _resume_final(core, actor, row, from_step, overrides)


async def _resume_final(
    core: ServerContext, actor: Actor, row: TaskRow, from_step: FromStep, overrides: Mapping[str, Any] | None
) -> TaskDetail:
    def copy_checkpoint(connection: Connection, made: list[TaskRow], now: float) -> None:
        known = checkpoints.known(connection, row)
        chosen = task_resume.choose(connection, row, known, from_step)
        task_resume.copy_to_child(connection, row, made[0], chosen, now)

    def check_checkpoint(connection: Connection) -> None:
        chosen = task_resume.choose(connection, row, checkpoints.known(connection, row), from_step)
        if not overrides:
            task_resume.refuse_done(connection, row, chosen)

    if row.slot_class != "job":
        raise ConflictError(f"A run of kind {row.kind} has no checkpoints.", hint=f"Use `tunefleet retry {row.id}`.")
    await core.read(check_checkpoint)
    wanted = await resubmission_of(core, actor, row.id, overrides)
    made = await workflows.store(core, wanted, then=copy_checkpoint)
    return await tasks.get(core, actor, made.tasks[0].id)
