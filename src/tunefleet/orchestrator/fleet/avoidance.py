"""Which workers do not get a task for a while: they did not accept it, or it failed there for the machine's reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.repositories import attempts, queue
from tunefleet.db.rows import AttemptRow, TaskRow
from tunefleet.lifecycle.task import MACHINE_REASONS, TaskReason
from tunefleet.observability.step_line import duration
from tunefleet.placement import Requirement, WorkerState, accepts_tasks, is_able

# A full disk stays full until someone frees space, so that the wait applies even if no other worker can run the task.
# Without another worker, the backoff of the task is enough for the other reasons: they pass in seconds, or never do, as
# a missing package that may be a typo in the user's code.
_LASTING: Final = frozenset({TaskReason.DISK_FULL.value})
_REASONS: Final = frozenset(reason.value for reason in MACHINE_REASONS)


@dataclass(frozen=True, slots=True)
class RetryRules:
    """When a task is offered again to a worker where it failed.

    Args:
        now: Unix time.
        wait_s: Seconds after the failure; 0 disables the wait.
        restarted: Worker id → Unix time of its last restart: an earlier failure does not count.
    """

    now: float
    wait_s: float = 0.0
    restarted: Mapping[str, float] = field(default_factory=dict)


def avoided(
    connection: Connection,
    rows: Sequence[TaskRow],
    needs: Mapping[str, Requirement],
    fleet: Sequence[WorkerState],
    rules: RetryRules,
) -> dict[str, dict[str, str]]:
    """Return the workers that do not get a queued task for a while.

    Args:
        needs: Requirements by key.

    Returns:
        Task id → worker id → why, as a clause after the worker's name; tasks without such a worker are left out.
    """
    found: dict[str, dict[str, str]] = {}
    # The usual case: no offer has failed, and one cheap query replaces one over all ids.
    if queue.any_trouble(connection):
        for void in queue.void_offers_of(connection, [row.id for row in rows]):
            if void.until > rules.now:
                found.setdefault(void.task_id, {})[void.worker_id] = "recently did not accept it"
    failed = {row.seq: row for row in rows if row.failures}
    if not failed or not rules.wait_s:
        return found
    ends: dict[int, dict[str, AttemptRow]] = {}
    for attempt in attempts.failed_since(connection, list(failed), _REASONS, rules.now - rules.wait_s):
        if (attempt.finished_at or 0.0) > rules.restarted.get(attempt.worker_id, 0.0):
            ends.setdefault(attempt.task_seq, {})[attempt.worker_id] = attempt
    for seq, by_worker in ends.items():
        row = failed[seq]
        others = [worker for worker in fleet if worker.id not in by_worker and accepts_tasks(worker)]
        elsewhere = is_able(needs[row.requirement_key], _serving(others, row.project))
        for worker_id, attempt in by_worker.items():
            if elsewhere or attempt.reason in _LASTING:
                found.setdefault(row.id, {})[worker_id] = _clause(attempt, rules)
    return found


def _serving(fleet: Sequence[WorkerState], project: str) -> list[WorkerState]:
    return [worker for worker in fleet if worker.project is None or worker.project == project]


def _clause(attempt: AttemptRow, rules: RetryRules) -> str:
    ago_s = max(0.0, rules.now - (attempt.finished_at or rules.now))
    reason = (attempt.reason or "").replace("_", " ")
    return f"failed it {duration(ago_s)} ago ({reason}) and gets it again in {duration(rules.wait_s - ago_s)}"
