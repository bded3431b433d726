"""Why a task waits, in words."""

from __future__ import annotations

from collections.abc import Sequence

from tunefleet.placement.gangs import largest
from tunefleet.placement.match import Fit, Reject, match
from tunefleet.placement.model import Requirement, WorkerState


def explain(
    requirement: Requirement,
    workers: Sequence[WorkerState],
    *,
    avoid: frozenset[str] = frozenset(),
    task_id: str | None = None,
) -> str | None:
    """Say in one sentence why a task waits.

    Args:
        requirement: What it needs.
        workers: All registered workers.
        avoid: Workers that did not take it lately.
        task_id: Which task: a worker that gathers what is free for it is no hindrance.

    Returns:
        The sentence; null if nothing stands in its way but its turn.
    """
    if not workers:
        return "unschedulable: no worker is registered."
    told: list[tuple[str, Reject]] = []
    fitting: list[WorkerState] = []
    for worker in workers:
        found = verdict(requirement, worker, avoid=avoid, task_id=task_id)
        if isinstance(found, Fit):
            fitting.append(worker)
            if requirement.nodes == 1:
                return None
        else:
            told.append((worker.id, found))
    if requirement.nodes > 1:
        return _of_gang(requirement, workers, fitting, told)
    passing = [(worker_id, reject) for worker_id, reject in told if not reject.lasting]
    listed = "; ".join(f"{worker_id} {reject.reason}" for worker_id, reject in (passing or told)[:3])
    more = len(passing or told) - 3
    listed += f"; and {more} more" if more > 0 else ""
    return f"waiting: {listed}." if passing else f"unschedulable: {listed}."


def _of_gang(
    need: Requirement, workers: Sequence[WorkerState], fitting: Sequence[WorkerState], told: list[tuple[str, Reject]]
) -> str | None:
    now = largest(need, fitting)
    if now >= need.nodes:
        return None
    lasting = {worker_id for worker_id, reject in told if reject.lasting}
    ever = largest(need, (worker for worker in workers if worker.id not in lasting))
    head = "waiting" if ever >= need.nodes else "unschedulable"
    count = f"it needs {need.nodes} nodes at the same time, and {now} {'fits' if now == 1 else 'fit'} now"
    if len(fitting) >= need.nodes or (ever < need.nodes <= len(workers) - len(lasting)):
        releases = "; ".join(f"{worker.id} has {worker.release or 'no torch'}" for worker in workers[:3])
        return f"{head}: {count}, since all must run the same releases of Tunefleet and torch ({releases})."
    passing = [(worker_id, reject) for worker_id, reject in told if not reject.lasting]
    listed = [f"{worker_id} {reject.reason}" for worker_id, reject in (passing or told)[:3]]
    return f"{head}: {'; '.join([count, *listed])}."


def verdict(
    requirement: Requirement,
    worker: WorkerState,
    *,
    avoid: frozenset[str] = frozenset(),
    task_id: str | None = None,
) -> Fit | Reject:
    """Return what one worker makes of a task; the arguments are those of `explain`."""
    found = match(requirement, worker)
    if isinstance(found, Reject):
        return found
    if worker.id in avoid:
        return Reject("did not take it lately", lasting=False)
    if worker.kept_for is not None and worker.kept_for != task_id and requirement.slot_class == "job":
        return Reject(f"gathers what becomes free for {worker.kept_for}, which came first", lasting=False)
    return found
