"""Assign queued tasks to workers: in queue order, each to the worker that the policy ranks first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Final

from tunefleet.placement import devices, gangs
from tunefleet.placement.match import able, accepts_tasks, fits, missing
from tunefleet.placement.model import Candidate, Requirement, WorkerState
from tunefleet.placement.policy import Key, Policy, Ranking

# Maximum number of tasks with reserved workers in one cycle: each reservation leaves capacity idle.
MAX_RESERVED: Final = 16

# The policy's sort key of a worker, and its id.
_Entry = tuple[Key, str]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task's worker and GPUs, by UUID; `members` are the other workers of a gang, each with its GPUs."""

    task_id: str
    worker_id: str
    gpus: tuple[str, ...] = ()
    members: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def worker_ids(self) -> tuple[str, ...]:
        """All workers, rank 0 first."""
        return (self.worker_id, *(worker_id for worker_id, _ in self.members))


@dataclass(frozen=True, slots=True)
class Decisions:
    """The outcome of one scheduling cycle.

    Args:
        reserved: Worker → the waiting task that its capacity is reserved for.
    """

    assignments: tuple[Assignment, ...]
    waiting: tuple[str, ...]
    reserved: dict[str, str]


def plan(candidates: Sequence[Candidate], workers: Sequence[WorkerState], policy: Policy | None = None) -> Decisions:
    """Assign candidates to workers."""
    in_order = sorted(candidates, key=lambda candidate: candidate.rank)
    return FreeCapacity(workers, policy or Policy()).assign(in_order)


class FreeCapacity:
    """Free capacity: one heap of workers for each requirement, so that a decision does not scan the fleet.

    A task that needs much of one worker (several GPUs, memory, cores) and fits nowhere has one worker reserved for it:
    tasks behind it get only what exceeds its share. So it waits at most until the tasks that run there have ended. A
    gang has as many workers reserved as it has nodes, each with a slot; it gets all of them in one cycle, or none.
    """

    def __init__(self, workers: Sequence[WorkerState], policy: Policy) -> None:
        self._policy = policy
        self._state = {worker.id: worker for worker in workers}
        self._available = [worker.id for worker in workers if accepts_tasks(worker)]
        self._with_free_slot: dict[str, list[str]] = {}
        self._able: dict[Requirement, frozenset[str]] = {}
        self._heaps: dict[Requirement, list[_Entry]] = {}
        self._rankings: dict[Requirement, Ranking] = {}
        self._reserved: dict[str, str] = {}
        self._reservation_tried: set[Requirement] = set()
        self.placed: set[str] = set()
        """The tasks assigned so far."""

    def room(self, need: Requirement) -> int:
        """Return the number of free slots on workers that fit a requirement."""
        return sum(self._state[worker_id].free[need.slot_class] for _, worker_id in self._heap(need))

    def has_room(self, need: Requirement) -> bool:
        """Whether a worker may fit a requirement; once none does, none will before the next cycle."""
        return bool(self._heap(need))

    def assign(self, candidates: Iterable[Candidate]) -> Decisions:
        """Assign candidates in their order."""
        assignments: list[Assignment] = []
        waiting: list[str] = []
        for candidate in candidates:
            found = self._place(candidate)
            if found is None:
                waiting.append(candidate.task_id)
                self._reserve(candidate)
            else:
                assignments.append(found)
        return Decisions(tuple(assignments), tuple(waiting), dict(self._reserved))

    def _place(self, candidate: Candidate) -> Assignment | None:
        need = candidate.requirement
        heap = self._heap(need)
        if need.nodes_max > 1:
            return self._place_gang(candidate)
        if candidate.prefers is not None:
            if candidate.prefers not in candidate.avoid and self._fits(need, candidate.prefers):
                return self._assign(candidate, candidate.prefers)
            if candidate.only:
                return None
        avoided: list[_Entry] = []
        chosen = None
        while heap and chosen is None:
            entry = heappop(heap)
            # Stale: the worker got a task after the entry was pushed. `_put` has pushed a current entry.
            if not self._is_current(need, entry):
                continue
            if entry[1] in candidate.avoid:
                avoided.append(entry)
            else:
                chosen = entry[1]
        for entry in avoided:
            heappush(heap, entry)
        return None if chosen is None else self._assign(candidate, chosen)

    def _place_gang(self, candidate: Candidate) -> Assignment | None:
        need = candidate.requirement
        ids = sorted(entry for entry in set(self._heap(need)) if self._is_current(need, entry))
        pool = [self._state[id_] for _, id_ in ids if id_ not in candidate.avoid]
        prefers = candidate.prefers if any(worker.id == candidate.prefers for worker in pool) else None
        chosen = [] if candidate.only and prefers is None else gangs.choose(need, pool, prefers)
        if not chosen and prefers is not None and not candidate.only:
            chosen = gangs.choose(need, pool)
        if not chosen:
            return None
        first, *others = [self._assign(candidate, worker.id) for worker in chosen]
        return replace(first, members=tuple((each.worker_id, each.gpus) for each in others))

    def _heap(self, need: Requirement) -> list[_Entry]:
        heap = self._heaps.get(need)
        if heap is None:
            able_workers = able(need, self._with_slot(need.slot_class))
            pool = [worker for worker in able_workers if fits(need, worker)]
            ranking = self._rankings[need] = Ranking(self._policy, need, pool)
            self._able[need] = frozenset(worker.id for worker in able_workers)
            heap = self._heaps[need] = [(ranking.key(worker), worker.id) for worker in pool]
            heapify(heap)
        return heap

    def _with_slot(self, slot_class: str) -> Iterable[WorkerState]:
        """Return the workers with a free slot at the start of the cycle: few in a busy fleet, and none is added."""
        if slot_class not in self._with_free_slot:
            self._with_free_slot[slot_class] = [
                id_ for id_ in self._available if self._state[id_].free.get(slot_class, 0) > 0
            ]
        return [self._state[worker_id] for worker_id in self._with_free_slot[slot_class]]

    def _fits(self, need: Requirement, worker_id: str) -> bool:
        return worker_id in self._able[need] and fits(need, self._state[worker_id])

    def _is_current(self, need: Requirement, entry: _Entry) -> bool:
        key, worker_id = entry
        return self._fits(need, worker_id) and self._rankings[need].key(self._state[worker_id]) == key

    def _assign(self, candidate: Candidate, worker_id: str) -> Assignment:
        need, worker = candidate.requirement, self._state[worker_id]
        chosen = devices.choose(need, worker) if need.gpu_count else ()
        slots = {**worker.free, need.slot_class: worker.free[need.slot_class] - 1}
        self._update(_without(worker, need, chosen, slots))
        self.placed.add(candidate.task_id)
        return Assignment(candidate.task_id, worker_id, tuple(worker.gpus[place].uuid for place in chosen))

    def _update(self, worker: WorkerState) -> None:
        self._state[worker.id] = worker
        for need, heap in self._heaps.items():
            if self._fits(need, worker.id):
                heappush(heap, (self._rankings[need].key(worker), worker.id))

    def _reserve(self, candidate: Candidate) -> None:
        """Reserve the worker that lacks the least for a task that fits nowhere."""
        need = candidate.requirement
        if not need.accumulates or need in self._reservation_tried or len(set(self._reserved.values())) >= MAX_RESERVED:
            return
        # Later tasks with the same requirement would find the same workers reserved.
        self._reservation_tried.add(need)
        states = (self._state[id_] for id_ in self._available if id_ not in self._reserved)
        if need.nodes > 1:
            self._reserve_gang(candidate, [each for each in able(need, states) if each.id not in candidate.avoid])
            return
        if candidate.only:
            states = (worker for worker in states if worker.id == candidate.prefers)
        gaps = ((missing(need, worker), worker.id) for worker in able(need, states))
        found = [(gap, id_) for gap, id_ in gaps if gap is not None and id_ not in candidate.avoid]
        if found:
            worker = self._state[min(found)[1]]
            self._reserved[worker.id] = candidate.task_id
            self._update(_without(worker, need, _share(need, worker), worker.free))

    def _reserve_gang(self, candidate: Candidate, states: Sequence[WorkerState]) -> None:
        need = candidate.requirement
        for worker in gangs.reserve(need, states, lambda worker: fits(need, worker)):
            self._reserved[worker.id] = candidate.task_id
            slots = {**worker.free, need.slot_class: max(0, worker.free.get(need.slot_class, 0) - 1)}
            self._update(_without(worker, need, _share(need, worker) if need.gpu_count else (), slots))


def _without(worker: WorkerState, need: Requirement, chosen: Sequence[int], free: dict[str, int]) -> WorkerState:
    """Return a worker without the resources that a task takes; `free` are its remaining slots."""
    if need.slot_class == "light" and not chosen:
        # Inline tasks run in the worker process: their requirement is checked, but not subtracted.
        return replace(worker, free=free)
    return replace(
        worker,
        free=free,
        taken=worker.taken | frozenset(chosen),
        cpu_taken=worker.cpu_taken + need.cpu,
        memory_taken=worker.memory_taken + need.memory_bytes,
        # The reported free memory does not include tasks that were just placed.
        memory_free_bytes=None
        if worker.memory_free_bytes is None
        else max(0, worker.memory_free_bytes - need.memory_bytes),
    )


def _share(need: Requirement, worker: WorkerState) -> tuple[int, ...]:
    """Return the devices to reserve: free ones first, then those that our own tasks still use."""
    fitting = devices.suited(need, worker)
    count = devices.wanted_count(need, fitting, worker)
    free = devices.choose(need, worker)
    ours = [place for place in fitting if place not in free and worker.gpus[place].used_by is None]
    return (*free, *devices.smallest_first(ours, worker))[:count]
