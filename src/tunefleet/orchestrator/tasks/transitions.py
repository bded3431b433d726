"""Change the status of tasks, and of all that follows from it, in one transaction.

Every service moves tasks through `switch`: whoever ends a task, and however, those that wait for it are judged at
once. `db.repositories.task_moves` changes rows and knows no pipelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.repositories import task_transitions
from tunefleet.db.repositories.task_transitions import Move
from tunefleet.db.rows import TaskRow
from tunefleet.lifecycle.task import FINAL
from tunefleet.orchestrator.workflows import readiness

__all__ = ["Move", "begin", "switch"]

_FINAL: Final = frozenset(status.value for status in FINAL)


def switch(connection: Connection, moves: Sequence[Move], now: float) -> list[TaskRow]:
    """Change the status of tasks; those that wait for the ones that end become ready, or end too."""
    moved = task_transitions.switch(connection, moves, now)
    _follow(connection, moved, now)
    return moved


def begin(connection: Connection, rows: Sequence[TaskRow], now: float) -> None:
    """Judge pending tasks that were just stored: what they wait for may have ended before."""
    switch(connection, readiness.judge(connection, rows, now), now)


def _follow(connection: Connection, moved: Sequence[TaskRow], now: float) -> None:
    ended = [row for row in moved if row.status in _FINAL]
    while ended:
        further = task_transitions.switch(connection, readiness.consequences(connection, ended, now), now)
        ended = [row for row in further if row.status in _FINAL]
