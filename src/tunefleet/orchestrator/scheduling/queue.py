"""Who waits: the tasks that placement decides about, the first in the queue first, each with where it would rather go.

They are read in pieces and no further than placement gets: what a pass costs depends on how much it can place, not on
how many wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from operator import attrgetter
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.repositories import queue, resumes
from tunefleet.db.rows import TaskRow
from tunefleet.orchestrator.scheduling import cluster_state
from tunefleet.placement import Board, Candidate, Requirement, Share, WorkerState, take_turns
from tunefleet.placement.policy import TRAININGS

# How many tasks with one need a pass looks at; what is left is looked at by the next one.
MAX_CANDIDATES: Final = 1024
# How long a training waits for a busy worker that has the files of an earlier stage, with stickiness on.
STICKY_WAIT_S: Final = 60.0
# So many more than there is room for: those that the free workers did not take lately must not hide the others.
_SPARE: Final = 32
_PIECE: Final = 64

_rank = attrgetter("rank")
Lines = Mapping[tuple[str, str], Requirement]
"""What waits: key of a need and project → the need."""


class Line:
    """The tasks that wait, by rank; read while a board decides about them.

    A task is handed out when the one before it has been decided. Of a need that nobody has room for any more, one more
    task is handed out if it is one that a worker is kept for, and no other: they would all wait.

    Args:
        shares: How the projects stand; null if there is one, without quotas.
    """

    def __init__(
        self,
        connection: Connection,
        board: Board,
        needs: Lines,
        fleet: Sequence[WorkerState],
        *,
        shares: Mapping[str, Share] | None = None,
        now: float,
        sticky: bool,
    ) -> None:
        self._connection = connection
        self._board = board
        self._needs = needs
        self._shares = shares
        self._fleet = fleet
        self._now = now
        self._sticky = sticky
        self.rows: dict[str, TaskRow] = {}
        """What has been read, by id."""
        self.is_cut = False
        """Whether some were not looked at although there may be room for them."""

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of the tasks that wait."""
        return frozenset(need.kind for need in self._needs.values())

    def __iter__(self) -> Iterator[Candidate]:
        """Hand out the candidates."""
        return self._in_turn(lambda candidate: candidate.task_id in self._board.placed)

    def all(self) -> list[Candidate]:
        """Return the candidates, in the order in which they come if all of them can be placed."""
        return list(self._in_turn(lambda _: True))

    def need_of(self, task_id: str) -> Requirement:
        """Return what a task needs that was handed out."""
        row = self.rows[task_id]
        return self._needs[(row.requirement_key, row.project)]

    def _in_turn(self, placed: Callable[[Candidate], bool]) -> Iterator[Candidate]:
        shares = self._shares
        if shares is None:
            return self._lane(None)
        lanes = {project: self._lane(project) for project in sorted(shares)}
        return take_turns(lanes, shares, placed)

    def _lane(self, project: str | None) -> Iterator[Candidate]:
        """Hand out the candidates of one project, or of all."""
        share = None if self._shares is None or project is None else self._shares[project]
        mine = (
            self._of(key, whose, need)
            for (key, whose), need in self._needs.items()
            if project in {None, whose} and (share is None or share.gpus or not need.gpu_count)
        )
        return merge(*mine, key=_rank)

    def _of(self, key: str, project: str, need: Requirement) -> Iterator[Candidate]:
        room = self._board.room(need)
        most = min(room + _SPARE, MAX_CANDIDATES) if room else 1
        if not room and not need.accumulates:
            return
        for number, candidate in enumerate(self._read(key, project, most), start=1):
            full = not self._board.has_room(need)
            if full and not need.accumulates:
                return
            yield candidate
            if full:
                return
            self.is_cut |= number == MAX_CANDIDATES

    def _read(self, key: str, project: str, most: int) -> Iterator[Candidate]:
        done = 0
        while done < most:
            count = min(max(_PIECE, done), most - done)
            rows = queue.first(self._connection, key, project, now=self._now, count=count, skip=done)
            self.rows.update((row.id, row) for row in rows)
            yield from self._candidates(rows)
            if len(rows) < count:
                return
            done += count

    def _candidates(self, rows: Sequence[TaskRow]) -> list[Candidate]:
        avoid = cluster_state.avoided(self._connection, [row.id for row in rows], self._now)
        jobs = [row for row in rows if row.slot_class == "job"]
        folders = resumes.last_workers(self._connection, [row.seq for row in jobs if row.attempts])
        wanted = resumes.of_tasks(self._connection, [row.id for row in jobs])
        found = []
        for row in rows:
            resume = wanted.get(row.id)
            holder = (resume.worker_id if resume is not None else None) or folders.get(row.id)
            need, away = self._needs[(row.requirement_key, row.project)], avoid.get(row.id, frozenset())
            only = resume is not None and bool(resume.bound)
            found.append(Candidate(row.id, need, row.rank, away, prefers=holder, only=only))
        return self._stick(found) if self._sticky else found

    def _stick(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Let tasks prefer the worker that has the files of a stage before them; a training waits a little for it."""
        free = [self.rows[each.task_id].seq for each in candidates if each.prefers is None]
        holders = resumes.upstream_workers(self._connection, free)
        if not holders:
            return list(candidates)
        here = {worker.id for worker in self._fleet if worker.present and not worker.pulls and worker.closed is None}
        found = []
        for each in candidates:
            row = self.rows[each.task_id]
            holder = holders.get(row.seq) if each.prefers is None else None
            if holder is None:
                found.append(each)
                continue
            patient = row.kind in TRAININGS and holder in here and holder not in each.avoid
            waits = patient and self._now - (row.queued_at or self._now) < STICKY_WAIT_S
            found.append(Candidate(each.task_id, each.requirement, each.rank, each.avoid, prefers=holder, only=waits))
        return found
