"""A task's place in the queue."""

from __future__ import annotations

from typing import Final

PRIORITY_S: Final = 600.0
"""How many seconds of waiting one point of priority is worth."""


def rank(queued_at: float, priority: int) -> float:
    """Return a task's place in the queue; lower goes first.

    All tasks age alike, so that priority and waiting make up one number that never changes.
    """
    return queued_at - priority * PRIORITY_S
