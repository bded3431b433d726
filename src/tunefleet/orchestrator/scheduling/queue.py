"""The scheduling queue: queued tasks in order, each with its preferred worker.

Tasks are read in pages and only as far as placement gets: the cost of a cycle depends on how much it can place, not on
the queue length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from operator import attrgetter
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.repositories import attempts, queue
from tunefleet.db.rows import TaskRow
from tunefleet.orchestrator.fleet import avoidance, federation_capacity
from tunefleet.orchestrator.fleet.avoidance import RetryRules
from tunefleet.placement import Candidate, FreeCapacity, Requirement, Share, WorkerState, fair_order
from tunefleet.placement.policy import TRAINING_KINDS

# Maximum number of tasks with one requirement in a cycle; the next cycle takes the rest.
MAX_CANDIDATES: Final = 1024
# With stickiness, how long a run waits for a busy worker that has the files of an earlier stage.
STICKY_WAIT_S: Final = 60.0
# Read beyond the free slots: tasks that the free workers did not accept recently must not hide the others.
_SPARE: Final = 32
_PIECE: Final = 64

_rank = attrgetter("rank")
# (key of the requirement, project) → requirement of queued tasks.
QueuedRequirements = Mapping[tuple[str, str], Requirement]


class QueueReader:
    """The queued tasks by rank, read lazily while they are placed.

    A task is yielded when the one before it has been decided. For a requirement that fits no worker any more, at most
    one more task is yielded, and only if a worker can be reserved for it: all others would wait too.

    Args:
        shares: Shares of the projects; None for a single project without quotas.
    """

    def __init__(
        self,
        connection: Connection,
        board: FreeCapacity,
        needs: QueuedRequirements,
        fleet: Sequence[WorkerState],
        *,
        shares: Mapping[str, Share] | None = None,
        retries: RetryRules,
        sticky: bool,
    ) -> None:
        self._connection = connection
        self._capacity = board
        self._needs = needs
        self._shares = shares
        self._fleet = fleet
        self._retries = retries
        self._needs_by_key = {key: need for (key, _), need in needs.items()}
        self._now = retries.now
        self._sticky = sticky
        self.rows: dict[str, TaskRow] = {}
        """Task rows read so far, by id."""
        self.is_truncated = False
        """Whether `MAX_CANDIDATES` cut off tasks that might still fit."""

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of the queued tasks."""
        return frozenset(need.kind for need in self._needs.values())

    def __iter__(self) -> Iterator[Candidate]:
        """Yield the candidates."""
        return self._in_turn(lambda candidate: candidate.task_id in self._capacity.placed)

    def all(self) -> list[Candidate]:
        """Return the candidates in the order that applies if all can be placed."""
        return list(self._in_turn(lambda _: True))

    def need_of(self, task_id: str) -> Requirement:
        """Return the requirement of a task that was yielded."""
        row = self.rows[task_id]
        return self._needs[(row.requirement_key, row.project)]

    def _in_turn(self, placed: Callable[[Candidate], bool]) -> Iterator[Candidate]:
        shares = self._shares
        if shares is None:
            return self._of_project(None)
        lanes = {project: self._of_project(project) for project in sorted(shares)}
        return fair_order(lanes, shares, placed)

    def _of_project(self, project: str | None) -> Iterator[Candidate]:
        """Yield the candidates of one project, or of all."""
        share = None if self._shares is None or project is None else self._shares[project]
        mine = (
            self._of(key, whose, need)
            for (key, whose), need in self._needs.items()
            if project in {None, whose} and (share is None or share.gpus or not need.gpu_count)
        )
        return merge(*mine, key=_rank)

    def _of(self, key: str, project: str, need: Requirement) -> Iterator[Candidate]:
        room = self._capacity.room(need)
        limit = min(room + _SPARE, MAX_CANDIDATES) if room else 1
        if not room and not need.accumulates:
            return
        for number, candidate in enumerate(self._read(key, project, limit), start=1):
            full = not self._capacity.has_room(need)
            if full and not need.accumulates:
                return
            yield candidate
            if full:
                return
            self.is_truncated |= number == MAX_CANDIDATES

    def _read(self, key: str, project: str, limit: int) -> Iterator[Candidate]:
        done = 0
        while done < limit:
            count = min(max(_PIECE, done), limit - done)
            rows = queue.first(self._connection, key, project, now=self._now, count=count, skip=done)
            self.rows.update((row.id, row) for row in rows)
            held = self._held_back(rows)
            yield from self._candidates([row for row in rows if row.id not in held])
            if len(rows) < count:
                return
            done += count
            # They must not hide the tasks behind them, however many they are.
            limit += len(held)

    def _held_back(self, rows: Sequence[TaskRow]) -> Mapping[str, str]:
        needs = {row.id: self._needs[(row.requirement_key, row.project)] for row in rows}
        return federation_capacity.held_back(self._connection, rows, needs, self._fleet) if rows else {}

    def _candidates(self, rows: Sequence[TaskRow]) -> list[Candidate]:
        avoid = avoidance.avoided(self._connection, rows, self._needs_by_key, self._fleet, self._retries)
        jobs = [row for row in rows if row.slot_class == "job"]
        folders = attempts.last_workers(self._connection, [row.seq for row in jobs if row.attempts])
        wanted = attempts.resumes_of(self._connection, [row.id for row in jobs])
        found = []
        for row in rows:
            resume = wanted.get(row.id)
            holder = (resume.worker_id if resume is not None else None) or folders.get(row.id)
            need, avoided_workers = self._needs[(row.requirement_key, row.project)], frozenset(avoid.get(row.id, ()))
            only = resume is not None and bool(resume.bound)
            found.append(Candidate(row.id, need, row.rank, avoided_workers, prefers=holder, only=only))
        return self._prefer_upstream_workers(found) if self._sticky else found

    def _prefer_upstream_workers(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Prefer the worker that has the files of an earlier stage; a run waits up to `STICKY_WAIT_S` for it."""
        free = [self.rows[each.task_id].seq for each in candidates if each.prefers is None]
        holders = attempts.upstream_workers(self._connection, free)
        if not holders:
            return list(candidates)
        available = {
            worker.id for worker in self._fleet if worker.present and not worker.pulls and worker.closed is None
        }
        found = []
        for each in candidates:
            row = self.rows[each.task_id]
            holder = holders.get(row.seq) if each.prefers is None else None
            if holder is None:
                found.append(each)
                continue
            patient = row.kind in TRAINING_KINDS and holder in available and holder not in each.avoid
            waits = patient and self._now - (row.queued_at or self._now) < STICKY_WAIT_S
            found.append(Candidate(each.task_id, each.requirement, each.rank, each.avoid, prefers=holder, only=waits))
        return found
