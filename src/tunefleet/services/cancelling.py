"""Cancel tasks: at once where nobody works on them or nobody answers, otherwise by asking the worker."""

from __future__ import annotations

from collections.abc import Sequence

from tunefleet.lifecycle.task import TaskReason
from tunefleet.services import orders
from tunefleet.services.roster import Presences
from tunefleet.store import Connection, attempts, events, tasks, wake
from tunefleet.store.rows import TaskRow
from tunefleet.store.task_moves import Move, switch


def cancel(connection: Connection, rows: Sequence[TaskRow], here: Presences) -> None:
    """Cancel tasks that are not final.

    A task that runs on a worker that answers ends at the end of its step, and its worker reports it. Any other ends
    now, and its token is void: who was given up cannot overwrite the outcome.
    """
    asked = [row for row in rows if row.status == "running" and row.worker_id in here.limits]
    for row in asked:
        if row.desired != "cancel":
            tasks.desire(connection, row.id, "cancel")
            events.append(connection, [events.of_task(row, "task.cancelling", here.now, {})])
        wake(connection, f"worker:{row.worker_id}", f"task:{row.id}")
    end(connection, [row for row in rows if row not in asked], here.now)


def end(connection: Connection, rows: Sequence[TaskRow], now: float) -> None:
    """Cancel tasks at once and void their attempts."""
    held = attempts.by_ids(connection, [row.attempt_id for row in rows if row.attempt_id])
    reason = TaskReason.CANCELLED_BY_USER
    attempts.store(
        connection,
        [a._replace(state="void", reason=reason.value, finished_at=now) for a in held.values() if a.open],
    )
    orders.close(connection, held.values(), "the task was cancelled.", now)
    switch(connection, [Move(row, reason, changes={"error": None}) for row in rows], now)
    wake(connection, "placement", *(f"worker:{row.worker_id}" for row in rows if row.worker_id))
