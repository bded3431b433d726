"""Spread waiting tasks over workers: the first in the queue first, each where it leaves the least idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tunefleet.placement.match import Fit, Reject, match
from tunefleet.placement.model import Candidate, Requirement, WorkerState


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task goes to a worker."""

    task_id: str
    worker_id: str


@dataclass(frozen=True, slots=True)
class Decisions:
    """The outcome of one pass.

    Args:
        assignments: Who goes where.
        waiting: The candidates that were not assigned; `explain` says why.
    """

    assignments: tuple[Assignment, ...]
    waiting: tuple[str, ...]


def plan(candidates: Sequence[Candidate], workers: Sequence[WorkerState]) -> Decisions:
    """Assign candidates to workers by best fit.

    Args:
        candidates: In any order; they are taken by rank.
        workers: What is free when the pass starts; the plan counts down on copies.
    """
    state = {worker.id: worker for worker in workers}
    assignments: list[Assignment] = []
    waiting: list[str] = []
    for candidate in sorted(candidates, key=lambda waiting_task: waiting_task.rank):
        chosen = _best(candidate, state)
        if chosen is None:
            waiting.append(candidate.task_id)
        else:
            assignments.append(Assignment(candidate.task_id, chosen.id))
            state[chosen.id] = _with_task(chosen, candidate.requirement)
    return Decisions(tuple(assignments), tuple(waiting))


def explain(
    requirement: Requirement, workers: Sequence[WorkerState], *, avoid: frozenset[str] = frozenset()
) -> str | None:
    """Say in one sentence why a task waits.

    Args:
        requirement: What it needs.
        workers: All registered workers.
        avoid: Workers that did not take it lately.

    Returns:
        The sentence; null if nothing stands in its way but its turn.
    """
    if not workers:
        return "unschedulable: no worker is registered."
    rejects = [(worker.id, _verdict(requirement, worker, avoid)) for worker in workers]
    told = [(worker_id, reject) for worker_id, reject in rejects if reject is not None]
    if len(told) < len(rejects):
        return None
    passing = [(worker_id, reject) for worker_id, reject in told if not reject.lasting]
    listed = "; ".join(f"{worker_id} {reject.reason}" for worker_id, reject in (passing or told)[:3])
    more = len(passing or told) - 3
    listed += f"; and {more} more" if more > 0 else ""
    return f"waiting: {listed}." if passing else f"unschedulable: {listed}."


def _verdict(requirement: Requirement, worker: WorkerState, avoid: frozenset[str]) -> Reject | None:
    verdict = match(requirement, worker)
    if isinstance(verdict, Reject):
        return verdict
    return Reject("did not take it lately", lasting=False) if worker.id in avoid else None


def _best(candidate: Candidate, state: dict[str, WorkerState]) -> WorkerState | None:
    best: tuple[tuple[float, ...], str] | None = None
    for worker in state.values():
        if worker.id in candidate.avoid:
            continue
        verdict = match(candidate.requirement, worker)
        if isinstance(verdict, Fit) and (best is None or (verdict.waste, worker.id) < best):
            best = (verdict.waste, worker.id)
    return state[best[1]] if best else None


def _with_task(worker: WorkerState, requirement: Requirement) -> WorkerState:
    free = {**worker.free, requirement.slot_class: worker.free[requirement.slot_class] - 1}
    return replace(worker, free=free, gpus_taken=worker.gpus_taken + requirement.gpu_count)
