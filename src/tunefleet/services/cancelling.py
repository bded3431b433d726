"""Cancel tasks: at once where nobody works on them or nobody answers, otherwise by asking the worker."""

from __future__ import annotations

from collections.abc import Sequence

from tunefleet.lifecycle.task import TaskReason
from tunefleet.services import voiding
from tunefleet.services.moving import Move, switch
from tunefleet.services.roster import Presences
from tunefleet.store import Connection
from tunefleet.store.rows import TaskRow


def cancel(connection: Connection, rows: Sequence[TaskRow], here: Presences) -> None:
    """Cancel tasks that are not final, and with them those that wait for them.

    A task that runs on a worker that answers ends at the end of its step, and its worker reports it. Any other ends
    now, and its token is void: who was given up cannot overwrite the outcome.
    """
    asked = [row for row in rows if row.status == "running" and row.worker_id in here.limits]
    voiding.ask(connection, asked, here.now)
    end(connection, [row for row in rows if row not in asked], here.now)


def end(connection: Connection, rows: Sequence[TaskRow], now: float) -> None:
    """Cancel tasks at once and void their attempts."""
    reason = TaskReason.CANCELLED_BY_USER
    voiding.void(connection, rows, reason, now)
    switch(connection, [Move(row, reason, changes={"error": None}) for row in rows], now)
