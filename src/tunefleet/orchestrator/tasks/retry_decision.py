"""Finalize an attempt: the reason and the retry budget decide whether its task is retried. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tunefleet.db.repositories.task_transitions import Move
from tunefleet.db.rows import TaskRow
from tunefleet.lifecycle.task import OUTCOMES, RetryBudget, TaskReason, TaskStatus

# Maximum number of lost workers per task: a task that crashes its machine must end too.
MAX_LOST: Final = 5
MAX_BACKOFF_S: Final = 3600.0
# Reasons that only the server may set.
_SERVER_ONLY: Final = frozenset(
    {
        TaskReason.UPSTREAM_FAILED,
        TaskReason.UPSTREAM_CANCELLED,
        TaskReason.SIBLING_FAILED,
        TaskReason.WORKER_LOST,
        TaskReason.NO_NODES,
        TaskReason.NO_WORKER,
    }
)


def finalize(
    task: TaskRow,
    reason: TaskReason,
    now: float,
    *,
    error: str | None = None,
    stopped: tuple[TaskReason, str] | None = None,
) -> Move:
    """Return the transition of a task whose attempt ended: retry with a delay, or end.

    A cancel that was stored before the end was reported wins over any reported outcome. With a pause request, a task
    that would be retried is paused instead, so that a resume continues from the last checkpoint.
    """
    if task.desired == "cancel":
        reason, error = stopped or (TaskReason.CANCELLED_BY_USER, None)
    move = _finalized(task, reason, now, error)
    if move.retry and task.desired == "pause":
        return replace(move, reason=TaskReason.PAUSED, retry=False, data={"after": reason.value})
    return move


def _finalized(task: TaskRow, reason: TaskReason, now: float, error: str | None) -> Move:
    outcome = OUTCOMES[reason]
    changes: dict[str, Any] = {"error": error}
    if outcome.budget is RetryBudget.FREE:
        return Move(task, reason, changes={"error": task.error})
    if outcome.budget is RetryBudget.LOST:
        losses = task.losses + 1
        return Move(task, reason, retry=losses <= MAX_LOST, changes={**changes, "losses": losses})
    if outcome.budget is RetryBudget.NONE:
        return Move(task, reason, changes=changes)
    failures = task.failures + 1
    retry = failures < task.max_attempts and reason.value in (task.retry_on or "").split(",")
    changes["failures"] = failures
    if not retry:
        return Move(task, reason, changes=changes)
    delay_s = min(task.backoff_s * 2.0 ** (failures - 1), MAX_BACKOFF_S)
    changes["ready_at"] = now + delay_s if delay_s > 0 else 0.0
    return Move(task, reason, retry=True, changes=changes, data={"backoff_s": delay_s})


def reason_of(outcome: str, reason: str) -> TaskReason:
    """Parse a reported reason; one that is unknown or contradicts the outcome is replaced by the outcome's default."""
    if outcome == "released":
        return TaskReason.RELEASED
    default = {
        "completed": TaskReason.FINISHED,
        "failed": TaskReason.CRASHED,
        "cancelled": TaskReason.ABORTED,
        "paused": TaskReason.PAUSED,
    }[outcome]
    try:
        reported = TaskReason(reason)
    except ValueError:
        return default
    return reported if OUTCOMES[reported].status is TaskStatus(outcome) and reported not in _SERVER_ONLY else default
