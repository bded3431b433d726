"""What became of workflows that were retried, and tasks whose result is there though they failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tunefleet.db import Connection
from tunefleet.db.repositories import tasks, workflows
from tunefleet.db.rows import TaskRow, WorkflowRow
from tunefleet.errors import ConflictError
from tunefleet.lifecycle.task import TaskReason, TaskStatus


def newest(connection: Connection, rows: Sequence[WorkflowRow]) -> dict[str, WorkflowRow]:
    """Return which workflow now runs, or has run, what others had left: id → the last of those that retried it."""
    found: dict[str, WorkflowRow] = {}
    ahead = {row.id: row.retried_as for row in rows if row.retried_as is not None}
    while ahead:
        known = workflows.by_ids(connection, sorted(set(ahead.values())))
        # One that was removed is none.
        found |= {id_: known[newer] for id_, newer in ahead.items() if newer in known}
        ahead = {id_: after for id_, newer in ahead.items() if newer in known and (after := known[newer].retried_as)}
    return found


def refuse_second(connection: Connection, workflow_id: str) -> None:
    """Refuse to retry a workflow whose retry runs, or has done what was left."""
    row = workflows.by_ids(connection, [workflow_id]).get(workflow_id)
    newer = newest(connection, [row]).get(workflow_id) if row is not None else None
    if newer is not None and newer.status in {"running", "completed"}:
        how = "is running" if newer.status == "running" else "has completed"
        raise ConflictError(
            f"The workflow {workflow_id} was retried as {newer.id}, which {how}.",
            hint=f"See: `tunefleet show {newer.id}`. `tunefleet retry --again {workflow_id}` runs it once more.",
        )


def computed(connection: Connection, rows: Iterable[TaskRow]) -> set[int]:
    """Return which tasks, by `seq`, have failed only to be delivered: the server has their results."""
    undelivered = [
        row.seq for row in rows if row.status == TaskStatus.FAILED and row.reason == TaskReason.DELIVERY_FAILED
    ]
    return {seq for seq, document in tasks.documents(connection, undelivered).items() if document.result is not None}
