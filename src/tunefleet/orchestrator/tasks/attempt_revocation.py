"""Take tasks away from whoever holds them: their attempts are void, and what was asked of those is answered."""

from __future__ import annotations

from collections.abc import Sequence

from tunefleet.db import Connection, wake
from tunefleet.db.repositories import attempts, events, tasks
from tunefleet.db.rows import TaskRow
from tunefleet.lifecycle.task import TaskReason
from tunefleet.orchestrator.access import gpu_usage
from tunefleet.orchestrator.tasks import commands


def void(connection: Connection, rows: Sequence[TaskRow], reason: TaskReason, now: float) -> None:
    """Void the attempts of tasks that are about to be cancelled: who was given up cannot overwrite the outcome."""
    held = attempts.by_ids(connection, [row.attempt_id for row in rows if row.attempt_id])
    gangs = attempts.of_gangs(connection, [row.id for row in held.values() if row.gang_of is not None])
    held |= {node.id: node for nodes in gangs.values() for node in nodes}
    gone = [a._replace(state="void", reason=reason.value, finished_at=now) for a in held.values() if a.open]
    attempts.store(connection, gone)
    gpu_usage.ended(connection, gone, {row.id: row for row in rows})
    commands.close(connection, held.values(), "the task was cancelled.", now)
    wake(connection, "placement", *(f"worker:{row.worker_id}" for row in rows if row.worker_id))
    wake(connection, *(f"worker:{node.worker_id}" for node in gone if node.member))


def ask(connection: Connection, rows: Sequence[TaskRow], now: float) -> None:
    """Ask the workers of running tasks to cancel them; they report it at the end of the step."""
    for row in rows:
        if row.desired != "cancel":
            tasks.desire(connection, row.id, "cancel")
            events.append(connection, [events.of_task(row, "task.cancelling", now, {})])
        wake(connection, f"worker:{row.worker_id}", f"task:{row.id}")
