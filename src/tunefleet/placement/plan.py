"""Spread waiting tasks over workers: the first in the queue first, each where the policy likes it best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Final

from tunefleet.placement import devices
from tunefleet.placement.match import able, could, fits, memory_free
from tunefleet.placement.model import Candidate, Requirement, WorkerState
from tunefleet.placement.policy import Key, Policy, Ranking

MAX_KEPT: Final = 16
"""For how many needs a worker is kept free in one pass; those behind them come first when these are placed."""

_Entry = tuple[Key, str]
"""How the policy likes a worker, and which."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task goes to a worker, and gets these of its GPUs, by UUID."""

    task_id: str
    worker_id: str
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decisions:
    """The outcome of one pass.

    Args:
        assignments: Who goes where.
        waiting: The candidates that were not assigned; `explain` says why.
        kept: Worker → the waiting task for which it gathers what becomes free.
    """

    assignments: tuple[Assignment, ...]
    waiting: tuple[str, ...]
    kept: dict[str, str]


def plan(candidates: Sequence[Candidate], workers: Sequence[WorkerState], policy: Policy | None = None) -> Decisions:
    """Assign candidates to workers.

    Args:
        candidates: In any order; they are taken by rank.
        workers: What is free when the pass starts; the plan counts down on copies.
        policy: Which of the workers that fit is taken.
    """
    return Board(workers, policy or Policy()).assign(candidates)


class Board:
    """Workers in the order in which each need prefers them, so that a decision does not look at all of them.

    An entry of a heap is good as long as the worker still fits that well; a worker that got a task is entered anew, and
    entries that it outgrew are dropped when they come up.

    A task that needs much of one worker (several GPUs, memory, cores) and comes first, but finds nobody who has enough
    of it free, has one worker kept for it: those behind it get what that worker has left beyond the task's share, and
    what becomes free of the share is gathered. So it waits at most until the tasks that run there have ended.

    Args:
        workers: What is free as the pass starts.
        policy: Which of the workers that fit is taken.
    """

    def __init__(self, workers: Sequence[WorkerState], policy: Policy) -> None:
        self._policy = policy
        self._state = {worker.id: worker for worker in workers}
        self._able: dict[Requirement, frozenset[str]] = {}
        self._heaps: dict[Requirement, list[_Entry]] = {}
        self._rankings: dict[Requirement, Ranking] = {}
        self._kept: dict[str, str] = {}
        self._kept_for: set[Requirement] = set()

    def room(self, need: Requirement) -> int:
        """Return how many tasks with a need there are slots for."""
        return sum(self._state[worker_id].free[need.slot_class] for _, worker_id in self._heap(need))

    def may_gather(self, need: Requirement) -> bool:
        """Whether it makes sense to keep a worker for a need that has no room now."""
        return need.accumulates and any(could(need, self._state[worker_id]) for worker_id in self._able[need])

    def assign(self, candidates: Sequence[Candidate]) -> Decisions:
        """Decide about waiting tasks, the first in the queue first."""
        assignments: list[Assignment] = []
        waiting: list[str] = []
        for candidate in sorted(candidates, key=lambda waiting_task: waiting_task.rank):
            found = self._take(candidate)
            if found is None:
                waiting.append(candidate.task_id)
                self._keep(candidate)
            else:
                assignments.append(found)
        return Decisions(tuple(assignments), tuple(waiting), dict(self._kept))

    def _take(self, candidate: Candidate) -> Assignment | None:
        need = candidate.requirement
        heap = self._heap(need)
        if candidate.prefers is not None:
            if candidate.prefers not in candidate.avoid and self._fits(need, candidate.prefers):
                return self._give(candidate, candidate.prefers)
            if candidate.only:
                return None
        avoided: list[_Entry] = []
        chosen = None
        while heap and chosen is None:
            entry = heappop(heap)
            if not self._is_good(need, entry):
                continue
            if entry[1] in candidate.avoid:
                avoided.append(entry)
            else:
                chosen = entry[1]
        for entry in avoided:
            heappush(heap, entry)
        return None if chosen is None else self._give(candidate, chosen)

    def _heap(self, need: Requirement) -> list[_Entry]:
        heap = self._heaps.get(need)
        if heap is None:
            lasting = able(need, self._state.values())
            pool = [worker for worker in lasting if fits(need, worker)]
            ranking = self._rankings[need] = Ranking(self._policy, need, pool)
            self._able[need] = frozenset(worker.id for worker in lasting)
            heap = self._heaps[need] = [(ranking.key(worker), worker.id) for worker in pool]
            heapify(heap)
        return heap

    def _fits(self, need: Requirement, worker_id: str) -> bool:
        return worker_id in self._able[need] and fits(need, self._state[worker_id])

    def _is_good(self, need: Requirement, entry: _Entry) -> bool:
        key, worker_id = entry
        return self._fits(need, worker_id) and self._rankings[need].key(self._state[worker_id]) == key

    def _give(self, candidate: Candidate, worker_id: str) -> Assignment:
        need, worker = candidate.requirement, self._state[worker_id]
        chosen = devices.choose(need, worker) if need.gpu_count else ()
        slots = {**worker.free, need.slot_class: worker.free[need.slot_class] - 1}
        self._put(replace(_without(worker, need, chosen), free=slots))
        return Assignment(candidate.task_id, worker_id, tuple(worker.gpus[place].uuid for place in chosen))

    def _put(self, worker: WorkerState) -> None:
        self._state[worker.id] = worker
        for need, heap in self._heaps.items():
            if self._fits(need, worker.id):
                heappush(heap, (self._rankings[need].key(worker), worker.id))

    def _keep(self, candidate: Candidate) -> None:
        """Keep the worker for a task that has the least to wait for: its share goes to nobody behind it."""
        need = candidate.requirement
        if not need.accumulates or need in self._kept_for or len(self._kept_for) >= MAX_KEPT:
            return
        self._kept_for.add(need)
        wanted = {candidate.prefers} if candidate.only else self._able[need]
        others = (self._state[worker_id] for worker_id in self._able[need] & wanted - candidate.avoid)
        found = [worker for worker in others if worker.id not in self._kept and could(need, worker)]
        if found:
            worker = min(found, key=lambda each: _missing(need, each))
            self._kept[worker.id] = candidate.task_id
            self._put(_without(worker, need, _share(need, worker)))


def _without(worker: WorkerState, need: Requirement, chosen: Sequence[int]) -> WorkerState:
    if need.slot_class == "light" and not chosen:
        return worker  # it runs inside the worker: what it asks for was looked at, and is not taken from anybody
    return replace(
        worker,
        taken=worker.taken | frozenset(chosen),
        cpu_taken=worker.cpu_taken + need.cpu,
        memory_taken=worker.memory_taken + need.memory_bytes,
        # Of what is really free a task that has just been placed uses nothing yet.
        memory_free_bytes=None
        if worker.memory_free_bytes is None
        else max(0, worker.memory_free_bytes - need.memory_bytes),
    )


def _missing(need: Requirement, worker: WorkerState) -> tuple[int, int, int, str]:
    """Return how much must still become free for a task, GPUs first."""
    count = devices.wanted_count(need, devices.suited(need, worker), worker)
    gpus = count - len(devices.choose(need, worker))
    memory = need.memory_bytes - memory_free(worker)
    return gpus, max(0, memory), max(0, need.cpu - worker.cpu + worker.cpu_taken), worker.id


def _share(need: Requirement, worker: WorkerState) -> tuple[int, ...]:
    """Return the devices that are kept: those that are free, then those that our tasks use still."""
    fitting = devices.suited(need, worker)
    count = devices.wanted_count(need, fitting, worker)
    free = devices.choose(need, worker)
    ours = [place for place in fitting if place not in free and worker.gpus[place].used_by is None]
    return (*free, *devices.smallest_first(ours, worker))[:count]
