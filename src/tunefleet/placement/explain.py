"""The pending reason of a task, as a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from tunefleet.placement.gangs import largest
from tunefleet.placement.match import Fit, Reject, able, fits, match
from tunefleet.placement.model import Requirement, WorkerState


def explain(
    requirement: Requirement,
    workers: Sequence[WorkerState],
    *,
    avoid: frozenset[str] = frozenset(),
    task_id: str | None = None,
) -> str | None:
    """Return the pending reason of a task.

    Returns:
        One sentence; None if the task only waits for its turn in the queue.
    """
    if not workers:
        return "unschedulable: no worker is registered."
    suited = able(requirement, workers)
    if requirement.nodes > 1:
        return _explain_gang(requirement, workers, suited, avoid, task_id)
    if any(_fits_now(requirement, worker, avoid, task_id) for worker in suited):
        return None
    # Build the message for three workers only: there may be thousands.
    named = [(each.id, verdict(requirement, each, avoid=avoid, task_id=task_id)) for each in (suited or workers)[:3]]
    listed = "; ".join(f"{worker_id} {result.reason}" for worker_id, result in named if isinstance(result, Reject))
    more = len(suited or workers) - 3
    listed += f"; and {more} more" if more > 0 else ""
    return f"waiting: {listed}." if suited else f"unschedulable: {listed}."


def _fits_now(requirement: Requirement, worker: WorkerState, avoid: frozenset[str], task_id: str | None) -> bool:
    return (
        fits(requirement, worker)
        and worker.id not in avoid
        and not _is_reserved_for_other(requirement, worker, task_id)
    )


def _is_reserved_for_other(requirement: Requirement, worker: WorkerState, task_id: str | None) -> bool:
    return worker.kept_for is not None and worker.kept_for != task_id and requirement.slot_class == "job"


def _explain_gang(
    need: Requirement,
    workers: Sequence[WorkerState],
    suited: Sequence[WorkerState],
    avoid: frozenset[str],
    task_id: str | None,
) -> str | None:
    fitting = [worker for worker in suited if _fits_now(need, worker, avoid, task_id)]
    now, ever = largest(need, fitting), largest(need, suited)
    if now >= need.nodes:
        return None
    head = "waiting" if ever >= need.nodes else "unschedulable"
    count = f"it needs {need.nodes} nodes at the same time, and {now} {'fits' if now == 1 else 'fit'} now"
    if len(fitting) >= need.nodes or ever < need.nodes <= len(suited):
        releases = "; ".join(f"{worker.id} has {worker.release or 'no torch'}" for worker in suited[:3])
        return f"{head}: {count}, since all must run the same releases of Tunefleet and torch ({releases})."
    # Prefer workers that could be nodes later; name the incompatible ones only if the gang is unschedulable.
    others = [worker for worker in (suited if ever >= need.nodes else workers) if worker not in fitting]
    named = [(each.id, verdict(need, each, avoid=avoid, task_id=task_id)) for each in others[:3]]
    listed = [f"{worker_id} {result.reason}" for worker_id, result in named if isinstance(result, Reject)]
    return f"{head}: {'; '.join([count, *listed])}."


def verdict(
    requirement: Requirement,
    worker: WorkerState,
    *,
    avoid: frozenset[str] = frozenset(),
    task_id: str | None = None,
) -> Fit | Reject:
    """Return the match result of one worker; the arguments are those of `explain`."""
    result = match(requirement, worker)
    if isinstance(result, Reject):
        return result
    if worker.id in avoid:
        return Reject("recently did not accept it", permanent=False)
    if _is_reserved_for_other(requirement, worker, task_id):
        return Reject(f"is reserved for {worker.kept_for}, which is ahead in the queue", permanent=False)
    return result
