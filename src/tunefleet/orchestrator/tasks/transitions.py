"""Task transitions and their consequences, in one transaction.

All status changes go through `switch`, so that dependent tasks are evaluated immediately, whatever ended the task.
`db.repositories.task_transitions` changes rows and knows no dependencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.repositories import task_transitions
from tunefleet.db.repositories.task_transitions import Move
from tunefleet.db.rows import TaskRow
from tunefleet.lifecycle.task import FINAL
from tunefleet.orchestrator.tasks import readiness

__all__ = ["Move", "begin", "switch"]

_FINAL: Final = frozenset(status.value for status in FINAL)


def switch(connection: Connection, moves: Sequence[Move], now: float) -> list[TaskRow]:
    """Change the status of tasks; tasks that depend on ended ones become ready, or end too."""
    moved = task_transitions.switch(connection, moves, now)
    _follow(connection, moved, now)
    return moved


def begin(connection: Connection, rows: Sequence[TaskRow], now: float) -> None:
    """Evaluate pending tasks that were just stored: their upstream tasks may have ended before."""
    switch(connection, readiness.evaluate(connection, rows, now), now)


def _follow(connection: Connection, moved: Sequence[TaskRow], now: float) -> None:
    ended = [row for row in moved if row.status in _FINAL]
    # Skipped tasks end too: follow until nothing depends on them any more.
    while ended:
        further = task_transitions.switch(connection, readiness.consequences(connection, ended, now), now)
        ended = [row for row in further if row.status in _FINAL]
