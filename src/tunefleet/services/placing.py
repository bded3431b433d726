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
from tunefleet.store import Connection, attempts, queue, wake
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
    candidates = [_candidate(row, needs[row.requirement_key], avoid) for row in rows.values()]
    decisions = plan(candidates, fleet)
    _offer(connection, decisions.assignments, rows, here.now)
    if len(rows) >= MAX_CANDIDATES:
        wake(connection, "placement")
    return len(decisions.assignments)


def _candidate(row: TaskRow, need: Requirement, avoid: dict[str, frozenset[str]]) -> Candidate:
    return Candidate(row.id, need, row.rank, avoid.get(row.id, frozenset()))


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
