"""A task's place in the queue."""

from __future__ import annotations

from typing import Final

PRIORITY_S: Final = 600.0
"""How many seconds of waiting one point of priority is worth."""
DUE_S: Final = 3600.0
"""Tasks without a deadline are treated as if they were due so long after they were queued."""
_LOAD_S: Final = 1e-6
_MAX_LOAD: Final = 1000


def rank(queued_at: float, priority: int, load: int = 0, due_at: float | None = None) -> float:
    """Return a task's place in the queue; lower goes first.

        rank = min(queued_at, due_at − 3600) − 600·priority − load/1,000,000

    All tasks age alike, so that priority and waiting make up one number that never changes. A task that is due counts
    as queued an hour before that moment, if that is earlier than it was: of those the one with the nearest deadline
    goes first, as if every other task were due an hour after it was queued. Load decides only between those that are
    queued at the same moment: the heavier goes first, so that the long ones do not come last.

    Args:
        queued_at: Unix time.
        priority: Of the task.
        load: How heavy it is, in any unit; what is above 1000 counts as 1000.
        due_at: Unix time at which it should be done; null if nobody said.
    """
    since = queued_at if due_at is None else min(queued_at, due_at - DUE_S)
    return since - priority * PRIORITY_S - min(load, _MAX_LOAD) * _LOAD_S
