"""Placement: match what waits with who is free, and open an attempt for each match, in one operation."""

from __future__ import annotations

from functools import partial
from typing import Final

from tunefleet.lifecycle.task import TaskReason
from tunefleet.placement import Assignment, Candidate, Requirement, WorkerState, match, plan
from tunefleet.placement.match import Fit
from tunefleet.services import roster
from tunefleet.services.core import Core
from tunefleet.services.ids import new_ordered_id
from tunefleet.services.roster import Presences
from tunefleet.store import Connection, attempts, queue, resumes, wake
from tunefleet.store.rows import AttemptRow, TaskRow
from tunefleet.store.task_moves import Move, switch

PRIORITY_S: Final = 600.0
"""How many seconds of waiting one point of priority is worth."""
MAX_CANDIDATES: Final = 1024
"""How many tasks one pass looks at; what is left is looked at by the next one."""


def rank(queued_at: float, priority: int) -> float:
    """Return a task's place in the queue; lower goes first.

    All tasks age alike, so that priority and waiting make up one number that never changes.
    """
    return queued_at - priority * PRIORITY_S


async def run_once(core: Core) -> int:
    """Place what can be placed now.

    Returns:
        How many attempts were opened.
    """
    here = roster.presences(core)
    if not here.limits:
        return 0
    return await core.write(partial(_pass, here=here))


def _pass(connection: Connection, here: Presences) -> int:
    keys = queue.groups(connection)
    if not keys:
        return 0
    fleet = roster.states(connection, here)
    needs = roster.needs(connection, keys)
    rows: dict[str, TaskRow] = {}
    for key, need in needs.items():
        room = _room(need, fleet)
        if room:
            # Tasks that the free workers did not take lately must not hide those behind them.
            found = queue.first(connection, key, now=here.now, count=min(room + 32, MAX_CANDIDATES))
            rows |= {row.id: row for row in found}
    if not rows:
        return 0
    avoid = roster.avoided(connection, list(rows), here.now)
    candidates = _candidates(connection, rows, needs, avoid)
    decisions = plan(candidates, fleet)
    _offer(connection, decisions.assignments, rows, here.now)
    if len(rows) >= MAX_CANDIDATES:
        wake(connection, "placement")
    return len(decisions.assignments)


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


def _room(need: Requirement, fleet: list[WorkerState]) -> int:
    return sum(worker.free[need.slot_class] for worker in fleet if isinstance(match(need, worker), Fit))


def _offer(connection: Connection, assignments: tuple[Assignment, ...], rows: dict[str, TaskRow], now: float) -> None:
    if not assignments:
        return
    opened, moves = [], []
    for assignment in assignments:
        row = rows[assignment.task_id]
        attempt_id, number = new_ordered_id("att"), row.attempts + 1
        opened.append(
            AttemptRow(
                attempt_id, row.id, row.seq, number, assignment.worker_id, row.kind, row.slot_class,
                row.requirement_key, "offered", None, None, now, None, None,
            )
        )  # fmt: skip
        changes = {
            "attempt_id": attempt_id, "attempts": number, "worker_id": assignment.worker_id,
            "desired": "run", "generation": 0, "reached": 0, "ready_at": 0.0,
        }  # fmt: skip
        moves.append(Move(row, TaskReason.OFFERED, changes=changes, data={"attempt": number}))
    attempts.insert_all(connection, opened)
    switch(connection, moves, now)
    wake(connection, *(f"worker:{assignment.worker_id}" for assignment in assignments))
