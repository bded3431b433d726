"""Lifecycle of a task: statuses, the reasons that change them, and which reasons allow a retry."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tunefleet.errors import IllegalTransition


class TaskStatus(StrEnum):
    """Status of a task. The last four are final."""

    PENDING = "pending"
    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"

    @property
    def final(self) -> bool:
        """Whether the status never changes again."""
        return self in FINAL


FINAL: Final = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.SKIPPED})


class RetryBudget(StrEnum):
    """Which counter a retry is charged to."""

    NONE = "none"
    """No retry: it cannot help."""
    ATTEMPTS = "attempts"
    """Counts against `retry.max_attempts`."""
    LOST = "lost"
    """Counts against `max_lost`: caused by the machine, not by the task."""
    FREE = "free"
    """Not counted: the task never started."""


class TaskReason(StrEnum):
    """Why a task changes its status. Callers give a reason, never a status."""

    READY = "ready"
    OFFERED = "offered"
    NOT_ACCEPTED = "not_accepted"
    STARTED = "started"
    RELEASED = "released"
    SPLIT = "split"
    FINISHED = "finished"
    STOPPED_EARLY = "stopped_early"
    PAUSED = "paused"
    RESUMED = "resumed"
    CANCELLED_BY_USER = "cancelled_by_user"
    ABORTED = "aborted"
    UPSTREAM_FAILED = "upstream_failed"
    UPSTREAM_CANCELLED = "upstream_cancelled"
    SIBLING_FAILED = "sibling_failed"
    CONDITION_UNMET = "condition_unmet"
    UPSTREAM_SKIPPED = "upstream_skipped"
    BAD_INPUT = "bad_input"
    BUG = "bug"
    OUT_OF_MEMORY = "out_of_memory"
    DISK_FULL = "disk_full"
    MACHINE_ERROR = "machine_error"
    NETWORK = "network"
    KILLED = "killed"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    STALLED = "stalled"
    DIVERGED = "diverged"
    DELIVERY_FAILED = "delivery_failed"
    WORKER_LOST = "worker_lost"
    NO_NODES = "no_nodes"
    NO_WORKER = "no_worker"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a reason leads to.

    Args:
        status: The status without a retry.
        budget: What a retry is charged to; with budget left, the task returns to the queue instead.
    """

    status: TaskStatus
    budget: RetryBudget = RetryBudget.NONE


_S = TaskStatus
OUTCOMES: Final[dict[TaskReason, Outcome]] = {
    TaskReason.READY: Outcome(_S.QUEUED),
    TaskReason.OFFERED: Outcome(_S.DISPATCHED),
    TaskReason.NOT_ACCEPTED: Outcome(_S.QUEUED, RetryBudget.FREE),
    TaskReason.STARTED: Outcome(_S.RUNNING),
    TaskReason.RELEASED: Outcome(_S.QUEUED, RetryBudget.FREE),
    TaskReason.SPLIT: Outcome(_S.RUNNING),
    TaskReason.FINISHED: Outcome(_S.COMPLETED),
    TaskReason.STOPPED_EARLY: Outcome(_S.COMPLETED),
    TaskReason.PAUSED: Outcome(_S.PAUSED),
    TaskReason.RESUMED: Outcome(_S.QUEUED),
    TaskReason.CANCELLED_BY_USER: Outcome(_S.CANCELLED),
    TaskReason.ABORTED: Outcome(_S.CANCELLED),
    TaskReason.UPSTREAM_FAILED: Outcome(_S.FAILED),
    TaskReason.UPSTREAM_CANCELLED: Outcome(_S.CANCELLED),
    TaskReason.SIBLING_FAILED: Outcome(_S.CANCELLED),
    TaskReason.CONDITION_UNMET: Outcome(_S.SKIPPED),
    TaskReason.UPSTREAM_SKIPPED: Outcome(_S.SKIPPED),
    TaskReason.BAD_INPUT: Outcome(_S.FAILED),
    TaskReason.BUG: Outcome(_S.FAILED, RetryBudget.ATTEMPTS),
    TaskReason.OUT_OF_MEMORY: Outcome(_S.FAILED, RetryBudget.ATTEMPTS),
    TaskReason.DISK_FULL: Outcome(_S.FAILED, RetryBudget.ATTEMPTS),
    TaskReason.MACHINE_ERROR: Outcome(_S.FAILED, RetryBudget.ATTEMPTS),
    TaskReason.NETWORK: Outcome(_S.FAILED, RetryBudget.ATTEMPTS),
    TaskReason.KILLED: Outcome(_S.FAILED, RetryBudget.ATTEMPTS),
    TaskReason.CRASHED: Outcome(_S.FAILED, RetryBudget.ATTEMPTS),
    TaskReason.TIMEOUT: Outcome(_S.FAILED, RetryBudget.ATTEMPTS),
    TaskReason.STALLED: Outcome(_S.FAILED, RetryBudget.ATTEMPTS),
    TaskReason.DIVERGED: Outcome(_S.FAILED),
    # The result exists; running the task again would not fix the delivery.
    TaskReason.DELIVERY_FAILED: Outcome(_S.FAILED),
    TaskReason.WORKER_LOST: Outcome(_S.FAILED, RetryBudget.LOST),
    # The cluster manager cannot provide such nodes; another request would get the same answer.
    TaskReason.NO_NODES: Outcome(_S.FAILED),
    TaskReason.NO_WORKER: Outcome(_S.FAILED),
}

MACHINE_REASONS: Final = frozenset(
    {TaskReason.OUT_OF_MEMORY, TaskReason.DISK_FULL, TaskReason.MACHINE_ERROR, TaskReason.NETWORK}
)
"""Failures whose cause may be the machine, so that another one may succeed."""

_OPEN = frozenset(TaskStatus) - FINAL
TRANSITIONS: Final[dict[TaskStatus, frozenset[TaskStatus]]] = {
    _S.PENDING: frozenset({_S.QUEUED, _S.RUNNING, _S.SKIPPED, _S.FAILED, _S.CANCELLED}),
    _S.QUEUED: frozenset({_S.DISPATCHED, _S.FAILED, _S.CANCELLED}),
    _S.DISPATCHED: frozenset({_S.QUEUED, _S.RUNNING, _S.FAILED, _S.CANCELLED}),
    _S.RUNNING: frozenset({_S.QUEUED, _S.PAUSED, _S.COMPLETED, _S.FAILED, _S.CANCELLED}),
    _S.PAUSED: frozenset({_S.QUEUED, _S.FAILED, _S.CANCELLED}),
    **dict.fromkeys(FINAL, frozenset()),
}


def move(status: TaskStatus, reason: TaskReason, *, retry: bool = False) -> TaskStatus:
    """Return the status that a reason leads to.

    Args:
        status: Current status.
        reason: Why the status changes.
        retry: Whether the retry budget is not exhausted; then a retryable reason leads back to the queue.

    Raises:
        IllegalTransition: If the table does not allow it.
    """
    outcome = OUTCOMES[reason]
    target = TaskStatus.QUEUED if retry and outcome.budget is not RetryBudget.NONE else outcome.status
    if target not in TRANSITIONS[status]:
        raise IllegalTransition(f"A task that is {status.value} cannot become {target.value} ({reason.value}).")
    return target
