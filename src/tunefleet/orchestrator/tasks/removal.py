"""Remove final tasks and workflows with their results; garbage collection deletes the files later."""

from __future__ import annotations

from collections.abc import Sequence

from tunefleet.db import Connection
from tunefleet.db.campaigns import models
from tunefleet.db.fleet import clusters, worker_rows
from tunefleet.db.repositories import (
    artifacts,
    attempts,
    commands,
    dependencies,
    events,
    journal,
    logs,
    notifications,
    queue,
    tasks,
    training_protocol,
    workflows,
)
from tunefleet.db.rows import TaskRow
from tunefleet.errors import ConflictError
from tunefleet.orchestrator.access.permissions import EXTERNAL
from tunefleet.orchestrator.tasks import task_federations


def refuse_needed(connection: Connection, rows: Sequence[TaskRow]) -> None:
    """Refuse to remove tasks that an unfinished task needs, or that produced a model version in use.

    Raises:
        ConflictError: If one of them is needed.
    """
    needing = dependencies.needing(connection, [row.seq for row in rows])
    if needing:
        raise ConflictError(
            f"Run {needing[0]} still needs the result.", hint=f"Cancel it with `tunefleet cancel {needing[0]}`."
        )
    read = next(iter(task_federations.versions_in_use(connection, rows).values()), None)
    if read is not None:
        raise ConflictError(
            f"Run {read} reads a version of its federation.", hint=f"Cancel it with `tunefleet cancel {read}`."
        )
    made = next(iter(models.in_use(connection, [row.id for row in rows]).items()), None)
    if made is not None:
        raise ConflictError(f"Run {made[0]} produced version {made[1].version} of model {made[1].name}.")


def remove_workflows(connection: Connection, seqs: Sequence[int], now: float) -> None:
    """Remove workflows, by `seq`, and their tasks."""
    found = tasks.of_workflows(connection, seqs)
    remove_tasks(connection, [row for rows in found.values() for row in rows], now)
    events.delete_of_workflows(connection, seqs)
    workflows.delete_rows(connection, seqs)


def remove_tasks(connection: Connection, rows: Sequence[TaskRow], now: float) -> None:
    """Remove tasks with all their rows; their workers delete the job folders."""
    ids = [row.id for row in rows]
    task_federations.remove_with(connection, rows, now)
    worker_rows.note_discards(connection, rows, strangers=EXTERNAL)
    artifacts.delete_rows(connection, artifacts.of_tasks(connection, ids))
    journal.delete_of_tasks(connection, ids)
    logs.delete_of_tasks(connection, ids)
    queue.delete_of_tasks(connection, ids)
    commands.delete_of_tasks(connection, ids)
    attempts.delete_resumes(connection, ids)
    notifications.delete_of_tasks(connection, ids)
    training_protocol.delete_of_tasks(connection, ids)
    tasks.delete_traces(connection, ids)
    dependencies.delete_of_tasks(connection, rows)
    dependencies.delete_shards(connection, rows)
    attempts.delete_of_tasks(connection, rows)
    clusters.delete_of_tasks(connection, rows)
    events.delete_of_tasks(connection, rows)
    tasks.delete_rows(connection, rows)
