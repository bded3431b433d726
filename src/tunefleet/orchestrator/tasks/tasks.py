"""Find, list, edit, cancel and remove tasks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tunefleet.db import Connection
from tunefleet.db.repositories import attempts, dependencies, events, journal, tasks
from tunefleet.db.rows import AttemptRow, TaskRow
from tunefleet.errors import ConflictError, NotFoundError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.access.permissions import Actor, may_change, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.fleet.cluster_state import FleetSnapshot
from tunefleet.orchestrator.ids import only_match
from tunefleet.orchestrator.tasks import listing, relations, removal, unreported_ends
from tunefleet.orchestrator.tasks.listing import TaskListQuery
from tunefleet.orchestrator.tasks.views import task_detail
from tunefleet.schemas.api import Page, TaskDetail, TaskEdit, TaskView


async def get(core: ServerContext, actor: Actor, task_id: str) -> TaskDetail:
    """Return a task by its id or a unique prefix of it.

    Raises:
        ConflictError: If several ids have the prefix.
        NotFoundError: If none has it.
    """
    may_read(actor)
    snapshot = cluster_state.fleet_snapshot(core)
    return await core.read(lambda connection: _detail(connection, find(connection, actor, task_id), snapshot))


async def list_(  # noqa: PLR0913 - the filters of one list
    core: ServerContext,
    actor: Actor,
    *,
    limit: int = 50,
    cursor: str | None = None,
    status: str | None = None,
    kind: str | None = None,
    owner: str | None = None,
    workflow_id: str | None = None,
    worker_id: str | None = None,
) -> Page[TaskView]:
    """Return tasks, newest first; each filter takes several values separated by commas."""
    filters = {"status": status, "kind": kind, "owner": owner, "workflow_id": workflow_id, "worker_id": worker_id}
    return await listing.page(core, actor, TaskListQuery(limit, cursor, filters=filters))


async def cancel(core: ServerContext, actor: Actor, task_id: str) -> TaskDetail:
    """Cancel a task. Idempotent.

    Raises:
        ConflictError: If it has ended in another way.
        ForbiddenError: If it belongs to another owner.
    """
    snapshot = cluster_state.fleet_snapshot(core)

    def operation(connection: Connection) -> TaskDetail:
        row = find(connection, actor, task_id)
        may_change(actor, row.owner, row.id)
        if TaskStatus(row.status).final:
            if row.status != TaskStatus.CANCELLED:
                raise ConflictError(f"Run {row.id} is already {row.status}.")
        else:
            unreported_ends.cancel_tasks(connection, [row], snapshot)
        return _detail(connection, find(connection, actor, row.id), snapshot)

    return await core.write(operation)


async def remove(core: ServerContext, actor: Actor, task_id: str) -> None:
    """Remove a final task with its results; the last task of a workflow removes the workflow.

    Raises:
        ConflictError: If it has not ended, is a shard, or another task waits for it.
        ForbiddenError: If it belongs to another owner.
    """

    def operation(connection: Connection) -> None:
        row = find(connection, actor, task_id)
        may_change(actor, row.owner, row.id)
        if not TaskStatus(row.status).final:
            raise ConflictError(
                f"Run {row.id} is {row.status}.", hint=f"Cancel it first with `tunefleet cancel {row.id}`."
            )
        refuse_part(connection, row, "rm")
        gone = [row, *dependencies.shards_of_parents(connection, [row.seq]).get(row.seq, ())]
        removal.refuse_needed(connection, gone)
        if len(tasks.of_workflows(connection, [row.workflow_seq])[row.workflow_seq]) == len(gone):
            removal.remove_workflows(connection, [row.workflow_seq], core.clock.wall())
        else:
            removal.remove_tasks(connection, gone, core.clock.wall())

    await core.write(operation)


async def edit(core: ServerContext, actor: Actor, task_id: str, changes: TaskEdit) -> TaskDetail:
    """Rename a task, or set its tags and notes.

    Raises:
        ForbiddenError: If it belongs to another owner.
    """
    snapshot = cluster_state.fleet_snapshot(core)

    def operation(connection: Connection) -> TaskDetail:
        row = find_owned(connection, actor, task_id)
        if "name" in changes.model_fields_set:
            tasks.set_title(connection, row.seq, None if changes.name == row.name else changes.name)
        if "tags" in changes.model_fields_set:
            tasks.replace_tags(connection, row.seq, changes.tags)
        if "notes" in changes.model_fields_set:
            tasks.set_notes(connection, row.seq, changes.notes or None)
        _append_edited(connection, row, core.clock.wall(), sorted(changes.model_fields_set))
        return _detail(connection, find(connection, actor, row.id), snapshot)

    return await core.write(operation)


async def tag(core: ServerContext, actor: Actor, task_id: str, tags: Sequence[str], *, remove: bool = False) -> None:
    """Add tags to a task, or remove them.

    Raises:
        ForbiddenError: If it belongs to another owner.
    """

    def operation(connection: Connection) -> None:
        row = find_owned(connection, actor, task_id)
        (tasks.remove_tags if remove else tasks.add_tags)(connection, row.seq, tags)
        _append_edited(connection, row, core.clock.wall(), ["tags"])

    await core.write(operation)


def _append_edited(connection: Connection, row: TaskRow, at: float, fields: Sequence[str]) -> None:
    # Notes may be private to the project: the event names the changed fields, not their values.
    events.append(connection, [events.of_task(row, "task.edited", at, {"fields": fields})])


def own(connection: Connection, project: str, held: Sequence[AttemptRow]) -> list[AttemptRow]:
    """Return the attempts whose tasks belong to a project."""
    mine = tasks.of_project(connection, project, [attempt.task_seq for attempt in held])
    return [attempt for attempt in held if attempt.task_seq in mine]


def find(connection: Connection, actor: Actor, task_id: str) -> TaskRow:
    """Return a task of the actor's project by its id or a unique prefix of it.

    Raises:
        ConflictError: If several ids have the prefix.
        NotFoundError: If none has it.
    """
    exact = tasks.by_ids(connection, [task_id]).get(task_id)
    if exact is not None and exact.project == actor.project:
        return exact
    prefix = task_id if task_id.startswith("task-") else f"task-{task_id}"
    found = only_match("tasks", task_id, partial(tasks.by_prefix, connection, prefix, actor.project))
    if found is None:
        raise NotFoundError(f"Run {task_id} not found.", hint="List them with `tunefleet ls`.")
    return found


def _detail(connection: Connection, row: TaskRow, snapshot: FleetSnapshot) -> TaskDetail:
    tries = attempts.of_task(connection, row)
    return task_detail(
        row,
        tasks.document(connection, row),
        tries,
        gangs=attempts.of_gangs(connection, [each.id for each in tries if each.gang_of is not None]),
        why=cluster_state.reasons(connection, snapshot, [row]).get(row.id),
        launches=journal.launches_of(connection, row.id),
        related=relations.of(connection, [row]),
    )


def refuse_part(connection: Connection, row: TaskRow, verb: str) -> None:
    """Refuse an operation on a shard that applies to its parent task.

    Raises:
        ConflictError: If the task is a shard.
    """
    part = dependencies.shards_of(connection, [row.seq]).get(row.seq)
    if part is not None:
        raise ConflictError(
            f"Run {row.id} is shard {part.number + 1} of {part.total} of {part.parent_id}.",
            hint=f"Use `tunefleet {verb} {part.parent_id}`.",
        )


def find_owned(connection: Connection, actor: Actor, task_id: str) -> TaskRow:
    """Return a task that the actor may change.

    Raises:
        ForbiddenError: If it belongs to another owner.
        NotFoundError: If there is none.
    """
    row = find(connection, actor, task_id)
    may_change(actor, row.owner, row.id)
    return row
