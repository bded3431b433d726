"""Placement: match what waits with who is free, and open an attempt for each match, in one operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tunefleet.lifecycle.task import TaskReason
from tunefleet.placement import Assignment, Board, Candidate, Policy, Requirement, WorkerState
from tunefleet.placement.policy import TRAININGS
from tunefleet.services import merging, roster
from tunefleet.services.core import Core
from tunefleet.services.ids import new_ordered_id
from tunefleet.services.roster import Presences
from tunefleet.settings import ServerSettings
from tunefleet.store import Connection, attempts, queue, resumes, wake
from tunefleet.store.rows import AttemptRow, TaskRow
from tunefleet.store.task_moves import Move, switch

MAX_CANDIDATES: Final = 1024
"""How many tasks one pass looks at; what is left is looked at by the next one."""
STICKY_WAIT_S: Final = 60.0
"""How long a training waits for a busy worker that has the files of an earlier stage, with stickiness on."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass has done.

    Args:
        assignments: Who went where.
        needs: Task → what it needs; of those that were assigned.
        kept: Worker → the waiting task for which it gathers what becomes free.
    """

    assignments: tuple[Assignment, ...] = ()
    needs: Mapping[str, Requirement] | None = None
    kept: Mapping[str, str] | None = None


def policy_of(settings: ServerSettings) -> Policy:
    """Return how workers that fit are chosen from."""
    return Policy(
        selection=settings.worker_selection,
        lambdas={
            "inference": settings.lambda_inference,
            "training": settings.lambda_training,
            "other": settings.lambda_other,
        },
        jitter=settings.selection_jitter,
        reuse=settings.context_reuse,
    )


async def run_once(core: Core) -> int:
    """Place what can be placed now.

    Returns:
        How many attempts were opened.
    """
    here = roster.presences(core)
    if not here.limits:
        return 0
    policy = policy_of(core.settings)
    settings = core.settings
    largest = settings.merge_largest if settings.merge else 1
    done = await core.write(partial(_pass, here=here, policy=policy, sticky=settings.stickiness, largest=largest))
    core.fleet.kept = dict(done.kept or {})
    for assignment in done.assignments:
        given = core.fleet.warm.setdefault(assignment.worker_id, {})
        given.update(dict.fromkeys((done.needs or {})[assignment.task_id].names, here.now))
    return len(done.assignments)


def _pass(connection: Connection, here: Presences, policy: Policy, sticky: bool, largest: int) -> Pass:
    keys = queue.groups(connection)
    if not keys:
        return Pass()
    fleet = roster.states(connection, here)
    needs = roster.needs(connection, keys)
    board = Board(fleet, policy)
    rows = _first_rows(connection, board, needs, here.now)
    if not rows:
        return Pass()
    avoid = roster.avoided(connection, list(rows), here.now)
    candidates = _candidates(connection, rows, needs, avoid)
    if sticky:
        candidates = _stick(connection, candidates, rows, here.now, fleet)
    decisions, along = merging.assign(connection, board, candidates, rows, fleet, now=here.now, largest=largest)
    _offer(connection, decisions.assignments, rows, here.now, along)
    if len(rows) >= MAX_CANDIDATES:
        wake(connection, "placement")
    placed = {
        assignment.task_id: needs[rows[assignment.task_id].requirement_key] for assignment in decisions.assignments
    }
    return Pass(decisions.assignments, placed, decisions.kept)


def _first_rows(
    connection: Connection, board: Board, needs: Mapping[str, Requirement], now: float
) -> dict[str, TaskRow]:
    rows: dict[str, TaskRow] = {}
    gathering = []
    for key, need in needs.items():
        room = board.room(need)
        if room:
            # Tasks that the free workers did not take lately must not hide those behind them.
            found = queue.first(connection, key, now=now, count=min(room + 32, MAX_CANDIDATES))
            rows |= {row.id: row for row in found}
        elif board.may_gather(need):
            gathering.append(key)
    if rows:
        # Those that nobody has room for take part as well: what becomes free piece by piece is gathered for them.
        for key in gathering:
            rows |= {row.id: row for row in queue.first(connection, key, now=now, count=1)}
    return rows


def _candidates(
    connection: Connection,
    rows: dict[str, TaskRow],
    needs: dict[str, Requirement],
    avoid: dict[str, frozenset[str]],
) -> list[Candidate]:
    jobs = [row for row in rows.values() if row.slot_class == "job"]
    folders = resumes.last_workers(connection, [row.seq for row in jobs if row.attempts])
    wanted = resumes.of_tasks(connection, [row.id for row in jobs])
    found = []
    for row in rows.values():
        resume = wanted.get(row.id)
        holder = (resume.worker_id if resume is not None else None) or folders.get(row.id)
        need, away = needs[row.requirement_key], avoid.get(row.id, frozenset())
        only = resume is not None and bool(resume.bound)
        found.append(Candidate(row.id, need, row.rank, away, prefers=holder, only=only))
    return found


def _stick(
    connection: Connection,
    candidates: Sequence[Candidate],
    rows: Mapping[str, TaskRow],
    now: float,
    fleet: Sequence[WorkerState],
) -> list[Candidate]:
    """Let tasks prefer the worker that has the files of a stage before them; a training waits a little for it."""
    free = [each for each in candidates if each.prefers is None]
    holders = resumes.upstream_workers(connection, [rows[each.task_id].seq for each in free])
    here = {worker.id for worker in fleet if worker.present and not worker.pulls and worker.closed is None}
    found = []
    for each in candidates:
        row = rows[each.task_id]
        holder = holders.get(row.seq) if each.prefers is None else None
        if holder is None:
            found.append(each)
            continue
        patient = row.kind in TRAININGS and holder in here and holder not in each.avoid
        waits = patient and now - (row.queued_at or now) < STICKY_WAIT_S
        found.append(Candidate(each.task_id, each.requirement, each.rank, each.avoid, prefers=holder, only=waits))
    return found


def _offer(
    connection: Connection,
    assignments: tuple[Assignment, ...],
    rows: Mapping[str, TaskRow],
    now: float,
    along: Mapping[str, Sequence[TaskRow]],
) -> None:
    if not assignments:
        return
    opened: list[AttemptRow] = []
    moves: list[Move] = []
    for assignment in assignments:
        whole, move = _opened(rows[assignment.task_id], assignment.worker_id, now, gpus=",".join(assignment.gpus))
        opened.append(whole)
        moves.append(move)
        for row in along.get(assignment.task_id, ()):
            part, move = _opened(row, assignment.worker_id, now, into=whole)
            opened.append(part)
            moves.append(move)
    attempts.insert_all(connection, opened)
    switch(connection, moves, now)
    wake(connection, *(f"worker:{assignment.worker_id}" for assignment in assignments))


def _opened(
    row: TaskRow, worker_id: str, now: float, *, gpus: str = "", into: AttemptRow | None = None
) -> tuple[AttemptRow, Move]:
    """Return a new attempt of a task and the task's move; `into` is the attempt whose run computes it."""
    attempt_id, number = new_ordered_id("att"), row.attempts + 1
    attempt = AttemptRow(
        attempt_id, row.id, row.seq, number, worker_id, row.kind, row.slot_class, row.requirement_key, "offered",
        None, None, now, None, None, into.id if into is not None else None, gpus or None,
    )  # fmt: skip
    changes = {
        "attempt_id": attempt_id, "attempts": number, "worker_id": worker_id,
        "desired": "run", "generation": 0, "reached": 0, "ready_at": 0.0,
    }  # fmt: skip
    data = {"attempt": number} if into is None else {"attempt": number, "merged_into": into.task_id}
    return attempt, Move(row, TaskReason.OFFERED, changes=changes, data=data)
