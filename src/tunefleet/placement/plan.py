"""Spread waiting tasks over workers: the first in the queue first, each where the policy likes it best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Final

from tunefleet.placement import devices, gangs
from tunefleet.placement.match import able, fits, may_get, missing
from tunefleet.placement.model import Candidate, Requirement, WorkerState
from tunefleet.placement.policy import Key, Policy, Ranking

# For how many needs a worker is kept free in one pass; those behind them come first when these are placed.
MAX_KEPT: Final = 16

# How the policy likes a worker, and which.
_Entry = tuple[Key, str]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task goes to a worker, and gets these of its GPUs, by UUID; a gang has further workers, each with its GPUs."""

    task_id: str
    worker_id: str
    gpus: tuple[str, ...] = ()
    members: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def worker_ids(self) -> tuple[str, ...]:
        """All workers, the one that leads first."""
        return (self.worker_id, *(worker_id for worker_id, _ in self.members))


@dataclass(frozen=True, slots=True)
class Decisions:
    """The outcome of one pass.

    Args:
        kept: Worker → the waiting task for which it gathers what becomes free.
    """

    assignments: tuple[Assignment, ...]
    waiting: tuple[str, ...]
    kept: dict[str, str]


def plan(candidates: Sequence[Candidate], workers: Sequence[WorkerState], policy: Policy | None = None) -> Decisions:
    """Assign candidates to workers."""
    in_order = sorted(candidates, key=lambda candidate: candidate.rank)
    return Board(workers, policy or Policy()).assign(in_order)


class Board:
    """Workers in the order in which each need prefers them, so that a decision does not look at all of them.

    An entry of a heap is good as long as the worker still fits that well; a worker that got a task is entered anew, and
    entries that it outgrew are dropped when they come up.

    A task that needs much of one worker (several GPUs, memory, cores) and comes first, but finds nobody who has enough
    of it free, has one worker kept for it: those behind it get what that worker has left beyond the task's share, and
    what becomes free of the share is gathered. So it waits at most until the tasks that run there have ended. A task
    that runs on several workers has as many kept, each with a slot; it gets all of them in one pass, or none.
    """

    def __init__(self, workers: Sequence[WorkerState], policy: Policy) -> None:
        self._policy = policy
        self._state = {worker.id: worker for worker in workers}
        self._here = [worker.id for worker in workers if may_get(worker)]
        self._roomy: dict[str, list[str]] = {}
        self._able: dict[Requirement, frozenset[str]] = {}
        self._heaps: dict[Requirement, list[_Entry]] = {}
        self._rankings: dict[Requirement, Ranking] = {}
        self._kept: dict[str, str] = {}
        self._looked: set[Requirement] = set()
        self.placed: set[str] = set()
        """The tasks that were assigned so far."""

    def room(self, need: Requirement) -> int:
        """Return how many tasks with a need there are slots for."""
        return sum(self._state[worker_id].free[need.slot_class] for _, worker_id in self._heap(need))

    def has_room(self, need: Requirement) -> bool:
        """Whether somebody may take a task with a need; once nobody does, nobody will before the next pass."""
        return bool(self._heap(need))

    def assign(self, candidates: Iterable[Candidate]) -> Decisions:
        """Decide about waiting tasks, one after the other."""
        assignments: list[Assignment] = []
        waiting: list[str] = []
        for candidate in candidates:
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
        if need.nodes_max > 1:
            return self._take_gang(candidate)
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

    def _take_gang(self, candidate: Candidate) -> Assignment | None:
        need = candidate.requirement
        ids = sorted(entry for entry in set(self._heap(need)) if self._is_good(need, entry))
        pool = [self._state[id_] for _, id_ in ids if id_ not in candidate.avoid]
        prefers = candidate.prefers if any(worker.id == candidate.prefers for worker in pool) else None
        chosen = [] if candidate.only and prefers is None else gangs.choose(need, pool, prefers)
        if not chosen and prefers is not None and not candidate.only:
            chosen = gangs.choose(need, pool)
        if not chosen:
            return None
        first, *others = [self._give(candidate, worker.id) for worker in chosen]
        return replace(first, members=tuple((each.worker_id, each.gpus) for each in others))

    def _heap(self, need: Requirement) -> list[_Entry]:
        heap = self._heaps.get(need)
        if heap is None:
            lasting = able(need, self._with_slot(need.slot_class))
            pool = [worker for worker in lasting if fits(need, worker)]
            ranking = self._rankings[need] = Ranking(self._policy, need, pool)
            self._able[need] = frozenset(worker.id for worker in lasting)
            heap = self._heaps[need] = [(ranking.key(worker), worker.id) for worker in pool]
            heapify(heap)
        return heap

    def _with_slot(self, slot_class: str) -> Iterable[WorkerState]:
        """Return who had a slot free when the pass began: in a busy fleet few, and nobody joins them before it ends."""
        if slot_class not in self._roomy:
            self._roomy[slot_class] = [id_ for id_ in self._here if self._state[id_].free.get(slot_class, 0) > 0]
        return [self._state[worker_id] for worker_id in self._roomy[slot_class]]

    def _fits(self, need: Requirement, worker_id: str) -> bool:
        return worker_id in self._able[need] and fits(need, self._state[worker_id])

    def _is_good(self, need: Requirement, entry: _Entry) -> bool:
        key, worker_id = entry
        return self._fits(need, worker_id) and self._rankings[need].key(self._state[worker_id]) == key

    def _give(self, candidate: Candidate, worker_id: str) -> Assignment:
        need, worker = candidate.requirement, self._state[worker_id]
        chosen = devices.choose(need, worker) if need.gpu_count else ()
        slots = {**worker.free, need.slot_class: worker.free[need.slot_class] - 1}
        self._put(_without(worker, need, chosen, slots))
        self.placed.add(candidate.task_id)
        return Assignment(candidate.task_id, worker_id, tuple(worker.gpus[place].uuid for place in chosen))

    def _put(self, worker: WorkerState) -> None:
        self._state[worker.id] = worker
        for need, heap in self._heaps.items():
            if self._fits(need, worker.id):
                heappush(heap, (self._rankings[need].key(worker), worker.id))

    def _keep(self, candidate: Candidate) -> None:
        """Keep the worker for a task that has the least to wait for: its share goes to nobody behind it."""
        need = candidate.requirement
        if not need.accumulates or need in self._looked or len(set(self._kept.values())) >= MAX_KEPT:
            return
        self._looked.add(need)
        states = (self._state[id_] for id_ in self._here if id_ not in self._kept)
        if need.nodes > 1:
            self._keep_gang(candidate, [each for each in able(need, states) if each.id not in candidate.avoid])
            return
        if candidate.only:
            states = (worker for worker in states if worker.id == candidate.prefers)
        gaps = ((missing(need, worker), worker.id) for worker in able(need, states))
        found = [(gap, id_) for gap, id_ in gaps if gap is not None and id_ not in candidate.avoid]
        if found:
            worker = self._state[min(found)[1]]
            self._kept[worker.id] = candidate.task_id
            self._put(_without(worker, need, _share(need, worker), worker.free))

    def _keep_gang(self, candidate: Candidate, states: Sequence[WorkerState]) -> None:
        need = candidate.requirement
        for worker in gangs.keep(need, states, lambda worker: fits(need, worker)):
            self._kept[worker.id] = candidate.task_id
            slots = {**worker.free, need.slot_class: max(0, worker.free.get(need.slot_class, 0) - 1)}
            self._put(_without(worker, need, _share(need, worker) if need.gpu_count else (), slots))


def _without(worker: WorkerState, need: Requirement, chosen: Sequence[int], free: dict[str, int]) -> WorkerState:
    """Return a worker less what a task takes of it; `free` is what is left of its slots."""
    if need.slot_class == "light" and not chosen:
        # It runs inside the worker: what it asks for was looked at, and is not taken from anybody.
        return replace(worker, free=free)
    return replace(
        worker,
        free=free,
        taken=worker.taken | frozenset(chosen),
        cpu_taken=worker.cpu_taken + need.cpu,
        memory_taken=worker.memory_taken + need.memory_bytes,
        # Of what is really free a task that has just been placed uses nothing yet.
        memory_free_bytes=None
        if worker.memory_free_bytes is None
        else max(0, worker.memory_free_bytes - need.memory_bytes),
    )


def _share(need: Requirement, worker: WorkerState) -> tuple[int, ...]:
    """Return the devices that are kept: those that are free, then those that our tasks use still."""
    fitting = devices.suited(need, worker)
    count = devices.wanted_count(need, fitting, worker)
    free = devices.choose(need, worker)
    ours = [place for place in fitting if place not in free and worker.gpus[place].used_by is None]
    return (*free, *devices.smallest_first(ours, worker))[:count]
