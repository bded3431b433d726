"""The scheduling cycle: match queued tasks with free workers and open an attempt for each, in one transaction."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tunefleet.db import Connection, wake
from tunefleet.db.repositories import attempts, queue
from tunefleet.db.repositories.task_transitions import Move, switch
from tunefleet.db.rows import AttemptRow, TaskRow
from tunefleet.lifecycle.task import TaskReason
from tunefleet.orchestrator.clusters import partial_allocation
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.ids import new_ordered_id
from tunefleet.orchestrator.scheduling import cluster_state, coalescing, fair_share
from tunefleet.orchestrator.scheduling.cluster_state import Presences
from tunefleet.orchestrator.scheduling.fair_share import Ledger
from tunefleet.orchestrator.scheduling.queue import Line
from tunefleet.placement import Assignment, Board, Policy, Requirement, Share
from tunefleet.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class Pass:
    """The result of one scheduling cycle.

    Args:
        needs: Assigned task → its requirement.
        kept: Worker → the waiting task that its capacity is reserved for.
        spent_s: CPU time of the cycle.
    """

    assignments: tuple[Assignment, ...] = ()
    needs: Mapping[str, Requirement] | None = None
    kept: Mapping[str, str] | None = None
    spent_s: float = 0.0


# A cycle that is faster than this runs after every change.
_CHEAP_S: Final = 0.01
_PAUSES: Final = 2.0
_MAX_PAUSE_S: Final = 1.0


def pause_s(core: Core) -> float:
    """Return the minimum pause before the next cycle."""
    # With thousands of workers a cycle is slow, and one for each ended task would take a whole processor: changes
    # during the pause are handled by one cycle.
    return 0.0 if core.pass_s < _CHEAP_S else min(_PAUSES * core.pass_s, _MAX_PAUSE_S)


def policy_of(settings: ServerSettings) -> Policy:
    """Return the worker selection policy from the settings."""
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
    """Run one scheduling cycle; return the number of assignments."""
    here = cluster_state.presences(core)
    if not here.limits:
        return 0
    policy = policy_of(core.settings)
    settings = core.settings
    largest = settings.merge_largest if settings.merge else 1
    work = partial(
        _pass, here=here, policy=policy, sticky=settings.stickiness, largest=largest, ledger=core.state(Ledger),
        patience_s=settings.nodes_patience_s,
    )  # fmt: skip
    done = await core.write(partial(_timed, work=work))
    core.pass_s = done.spent_s
    core.fleet.kept = dict(done.kept or {})
    for assignment in done.assignments:
        for worker_id in assignment.worker_ids:
            core.fleet.give(worker_id, (done.needs or {})[assignment.task_id].names, here.now)
    return len(done.assignments)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable the garbage collector."""
    # A cycle over a large fleet allocates tens of thousands of objects without reference cycles: the collector would
    # scan the whole heap several times and free nothing.
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _timed(connection: Connection, work: Callable[[Connection], Pass]) -> Pass:
    # CPU time and not wall time: time spent waiting for a lock must not lengthen the pause.
    began_s = time.thread_time()
    done = work(connection)
    return replace(done, spent_s=time.thread_time() - began_s)


@_uncollected()
def _pass(
    connection: Connection,
    here: Presences,
    policy: Policy,
    sticky: bool,
    largest: int,
    ledger: Ledger,
    patience_s: float,
) -> Pass:
    lines = queue.lines(connection)
    if not lines:
        return Pass()
    fleet = cluster_state.states(connection, here)
    needs = partial_allocation.gathered(
        connection, cluster_state.needs_of(connection, lines, fleet), here.now, patience_s
    )
    board = Board(fleet, policy)
    if not any(board.has_room(need) for need in needs.values()):
        return Pass()
    waiting = {project for _, project in lines}
    stand = fair_share.standing(connection, ledger, waiting, here.now)
    left = None if stand is None else {name: replace(share) for name, share in stand.items()}
    line = Line(connection, board, needs, fleet, now=here.now, sticky=sticky, shares=stand)
    decisions, along = coalescing.assign(connection, board, line, fleet, now=here.now, largest=largest)
    assignments, beside = _allowed(decisions.assignments, along, line.rows, left)
    _offer(connection, assignments, line.rows, here.now, beside)
    # Tasks were left over that might fit: run another cycle without waiting for a change.
    if line.is_cut or len(assignments) < len(decisions.assignments):
        wake(connection, "placement")
    return Pass(assignments, {each.task_id: line.need_of(each.task_id) for each in assignments}, decisions.kept)


def _allowed(
    assignments: tuple[Assignment, ...],
    along: Mapping[str, Sequence[TaskRow]],
    rows: Mapping[str, TaskRow],
    left: Mapping[str, Share] | None,
) -> tuple[tuple[Assignment, ...], Mapping[str, Sequence[TaskRow]]]:
    """Drop assignments over a project's quota of running tasks; coalesced tasks count too."""
    if left is None or all(share.places is None for share in left.values()):
        return assignments, along
    kept = tuple(each for each in assignments if fair_share.within(left, rows[each.task_id].project))
    beside = {
        each.task_id: [row for row in along.get(each.task_id, ()) if fair_share.within(left, row.project)]
        for each in kept
    }
    return kept, beside


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
        nodes = _gang(whole, assignment)
        opened += nodes
        if len(nodes) > 1:
            move.data["workers"] = list(assignment.worker_ids)
        moves.append(move)
        for row in along.get(assignment.task_id, ()):
            part, move = _opened(row, assignment.worker_id, now, into=whole)
            opened.append(part)
            moves.append(move)
    attempts.insert_all(connection, opened)
    switch(connection, moves, now)
    wake(connection, *(f"worker:{id_}" for assignment in assignments for id_ in assignment.worker_ids))


def _gang(first: AttemptRow, assignment: Assignment) -> list[AttemptRow]:
    """Return the attempts of all nodes; one for a single-node task."""
    if not assignment.members:
        return [first]
    others = (
        first._replace(
            id=new_ordered_id("att"), worker_id=worker_id, gpus=",".join(gpus) or None, gang_of=first.id, node_rank=rank
        )
        for rank, (worker_id, gpus) in enumerate(assignment.members, start=1)
    )
    return [first._replace(gang_of=first.id, node_rank=0), *others]


def _opened(
    row: TaskRow, worker_id: str, now: float, *, gpus: str = "", into: AttemptRow | None = None
) -> tuple[AttemptRow, Move]:
    """Return a new attempt and the task's transition; `into` is the attempt that a coalesced task runs in."""
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
