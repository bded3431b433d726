"""Retries of workflows, and failed tasks whose result exists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tunefleet.db import Connection
from tunefleet.db.repositories import tasks, workflows
from tunefleet.db.rows import TaskRow, WorkflowRow
from tunefleet.errors import ConflictError
from tunefleet.lifecycle.task import TaskReason, TaskStatus


def newest(connection: Connection, rows: Sequence[WorkflowRow]) -> dict[str, WorkflowRow]:
    """Return the newest retry of workflows: id → the last workflow of its chain of retries."""
    found: dict[str, WorkflowRow] = {}
    ahead = {row.id: row.retried_as for row in rows if row.retried_as is not None}
    while ahead:
        known = workflows.by_ids(connection, sorted(set(ahead.values())))
        # A removed retry is ignored.
        found |= {id_: known[newer] for id_, newer in ahead.items() if newer in known}
        ahead = {id_: after for id_, newer in ahead.items() if newer in known and (after := known[newer].retried_as)}
    return found


def refuse_second(connection: Connection, workflow_id: str) -> None:
    """Refuse a second retry while the first is running or has completed.

    Raises:
        ConflictError: If the newest retry is running or has completed.
    """
    row = workflows.by_ids(connection, [workflow_id]).get(workflow_id)
    newer = newest(connection, [row]).get(workflow_id) if row is not None else None
    if newer is not None and newer.status in {"running", "completed"}:
        how = "is running" if newer.status == "running" else "has completed"
        raise ConflictError(
            f"The workflow {workflow_id} was retried as {newer.id}, which {how}.",
            hint=f"See `tunefleet show {newer.id}`, or run it once more with `tunefleet retry --again {workflow_id}`.",
        )


def computed(connection: Connection, rows: Iterable[TaskRow]) -> set[int]:
    """Return the `seq` of tasks of which only the delivery failed: the server has their results."""
    undelivered = [
        row.seq for row in rows if row.status == TaskStatus.FAILED and row.reason == TaskReason.DELIVERY_FAILED
    ]
    return {seq for seq, document in tasks.documents(connection, undelivered).items() if document.result is not None}
