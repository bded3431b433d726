"""Spread waiting tasks over workers: the first in the queue first, each where it leaves the least idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from tunefleet.placement.match import Fit, Reject, match
from tunefleet.placement.model import Candidate, Requirement, WorkerState

_Entry = tuple[tuple[float, ...], str]
"""What would lie idle, and the worker."""


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
    board = _Board(workers)
    assignments: list[Assignment] = []
    waiting: list[str] = []
    for candidate in sorted(candidates, key=lambda waiting_task: waiting_task.rank):
        worker_id = board.take(candidate)
        if worker_id is None:
            waiting.append(candidate.task_id)
        else:
            assignments.append(Assignment(candidate.task_id, worker_id))
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


class _Board:
    """Workers in the order in which each need prefers them, so that a decision does not look at all of them.

    An entry of a heap is good as long as the worker still fits that well; a worker that got a task is entered anew, and
    entries that it outgrew are dropped when they come up.
    """

    def __init__(self, workers: Sequence[WorkerState]) -> None:
        self._state = {worker.id: worker for worker in workers}
        self._heaps: dict[Requirement, list[_Entry]] = {}

    def take(self, candidate: Candidate) -> str | None:
        """Give a candidate to the worker that fits best, and return it; null if none fits."""
        need = candidate.requirement
        if candidate.prefers is not None:
            chosen = self._take_preferred(candidate, candidate.prefers)
            if chosen is not None or candidate.only:
                return chosen
        heap = self._heaps.get(need)
        if heap is None:
            heap = self._heaps[need] = [entry for worker in self._state.values() for entry in _entries(need, worker)]
            heapify(heap)
        avoided: list[_Entry] = []
        chosen = None
        while heap and chosen is None:
            entry = heappop(heap)
            if entry not in _entries(need, self._state[entry[1]]):
                continue
            if entry[1] in candidate.avoid:
                avoided.append(entry)
            else:
                chosen = entry[1]
        for entry in avoided:
            heappush(heap, entry)
        if chosen is not None:
            self._give(chosen, need)
        return chosen

    def _take_preferred(self, candidate: Candidate, worker_id: str) -> str | None:
        worker = self._state.get(worker_id)
        if worker is None or worker_id in candidate.avoid or not _entries(candidate.requirement, worker):
            return None
        self._give(worker_id, candidate.requirement)
        return worker_id

    def _give(self, worker_id: str, need: Requirement) -> None:
        worker = self._state[worker_id] = _with_task(self._state[worker_id], need)
        for other, heap in self._heaps.items():
            for entry in _entries(other, worker):
                heappush(heap, entry)


def _entries(need: Requirement, worker: WorkerState) -> list[_Entry]:
    verdict = match(need, worker)
    return [(verdict.waste, worker.id)] if isinstance(verdict, Fit) else []


def _with_task(worker: WorkerState, requirement: Requirement) -> WorkerState:
    free = {**worker.free, requirement.slot_class: worker.free[requirement.slot_class] - 1}
    return replace(worker, free=free, gpus_taken=worker.gpus_taken + requirement.gpu_count)
