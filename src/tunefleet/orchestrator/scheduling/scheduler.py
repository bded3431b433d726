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
from tunefleet.db.fleet import clusters
from tunefleet.db.repositories import attempts, queue, tasks
from tunefleet.db.repositories.task_transitions import Move, switch
from tunefleet.db.rows import AttemptRow, TaskRow
from tunefleet.lifecycle.task import TaskReason
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.fleet.cluster_state import FleetSnapshot
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.orchestrator.ids import new_ordered_id
from tunefleet.orchestrator.scheduling import coalescing, fair_share
from tunefleet.orchestrator.scheduling.fair_share import Ledger
from tunefleet.orchestrator.scheduling.queue import QueueReader
from tunefleet.placement import Assignment, FreeCapacity, Policy, Requirement, Share
from tunefleet.settings import ServerSettings

# A cycle that is faster than this runs after every change.
_FAST_CYCLE_S: Final = 0.01
_PAUSE_FACTOR: Final = 2.0
_MAX_PAUSE_S: Final = 1.0
# How long to wait for further workers of a job, after it got its nodes and after each worker. The nodes of one job
# start within seconds of each other, and nodes that a training run starts without stay idle until it ends.
GATHER_S: Final = 20.0


@dataclass(slots=True)
class CycleTime:
    """CPU time of the last scheduling cycle, in seconds."""

    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CycleResult:
    """The result of one scheduling cycle.

    Args:
        needs: Assigned task → its requirement.
        reserved: Worker → the waiting task that its capacity is reserved for.
        spent_s: CPU time of the cycle.
    """

    assignments: tuple[Assignment, ...] = ()
    needs: Mapping[str, Requirement] | None = None
    reserved: Mapping[str, str] | None = None
    spent_s: float = 0.0


def pause_s(core: ServerContext) -> float:
    """Return the minimum pause before the next cycle."""
    # With thousands of workers a cycle is slow, and one for each ended task would take a whole processor: changes
    # during the pause are handled by one cycle.
    return (
        0.0
        if core.state(CycleTime).cpu_s < _FAST_CYCLE_S
        else min(_PAUSE_FACTOR * core.state(CycleTime).cpu_s, _MAX_PAUSE_S)
    )


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


async def run_once(core: ServerContext) -> int:
    """Run one scheduling cycle; return the number of assignments."""
    snapshot = cluster_state.fleet_snapshot(core)
    if not snapshot.limits:
        return 0
    policy = policy_of(core.settings)
    settings = core.settings
    largest = settings.merge_largest if settings.merge else 1
    work = partial(
        _run_cycle, snapshot=snapshot, policy=policy, sticky=settings.stickiness, largest=largest,
        ledger=core.state(Ledger), patience_s=settings.nodes_patience_s,
    )  # fmt: skip
    done = await core.write(partial(_with_cpu_time, work=work))
    core.state(CycleTime).cpu_s = done.spent_s
    core.state(Fleet).reserved = dict(done.reserved or {})
    for assignment in done.assignments:
        for worker_id in assignment.worker_ids:
            core.state(Fleet).give(worker_id, (done.needs or {})[assignment.task_id].names, snapshot.now)
    return len(done.assignments)


@contextmanager
def _gc_disabled() -> Iterator[None]:
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


def _with_cpu_time(connection: Connection, work: Callable[[Connection], CycleResult]) -> CycleResult:
    # CPU time and not wall time: time spent waiting for a lock must not lengthen the pause.
    began_s = time.thread_time()
    done = work(connection)
    return replace(done, spent_s=time.thread_time() - began_s)


@_gc_disabled()
def _run_cycle(
    connection: Connection,
    snapshot: FleetSnapshot,
    policy: Policy,
    sticky: bool,
    largest: int,
    ledger: Ledger,
    patience_s: float,
) -> CycleResult:
    lines = queue.lines(connection)
    if not lines:
        return CycleResult()
    fleet = cluster_state.states(connection, snapshot)
    needs = gathered(connection, cluster_state.needs_of(connection, lines, fleet), snapshot.now, patience_s)
    board = FreeCapacity(fleet, policy)
    if not any(board.has_room(need) for need in needs.values()):
        return CycleResult()
    waiting = {project for _, project in lines}
    shares = fair_share.project_shares(connection, ledger, waiting, snapshot.now)
    quotas = None if shares is None else {name: replace(share) for name, share in shares.items()}
    reader = QueueReader(connection, board, needs, fleet, retries=snapshot.retries, sticky=sticky, shares=shares)
    decisions, coalesced = coalescing.assign(
        connection, board, reader, fleet, retries=snapshot.retries, largest=largest
    )
    assignments, allowed = _allowed(decisions.assignments, coalesced, reader.rows, quotas)
    _offer(connection, assignments, reader.rows, snapshot.now, allowed)
    # Tasks were left over that might fit: run another cycle without waiting for a change.
    if reader.is_truncated or len(assignments) < len(decisions.assignments):
        wake(connection, "placement")
    return CycleResult(
        assignments, {each.task_id: reader.need_of(each.task_id) for each in assignments}, decisions.reserved
    )


def _allowed(
    assignments: tuple[Assignment, ...],
    coalesced: Mapping[str, Sequence[TaskRow]],
    rows: Mapping[str, TaskRow],
    quotas: Mapping[str, Share] | None,
) -> tuple[tuple[Assignment, ...], Mapping[str, Sequence[TaskRow]]]:
    """Drop assignments over a project's quota of running tasks; coalesced tasks count too."""
    if quotas is None or all(share.remaining is None for share in quotas.values()):
        return assignments, coalesced
    kept = tuple(each for each in assignments if fair_share.within(quotas, rows[each.task_id].project))
    coalesced = {
        each.task_id: [row for row in coalesced.get(each.task_id, ()) if fair_share.within(quotas, row.project)]
        for each in kept
    }
    return kept, coalesced


def _offer(
    connection: Connection,
    assignments: tuple[Assignment, ...],
    rows: Mapping[str, TaskRow],
    now: float,
    coalesced: Mapping[str, Sequence[TaskRow]],
) -> None:
    if not assignments:
        return
    opened: list[AttemptRow] = []
    moves: list[Move] = []
    for assignment in assignments:
        attempt, move = _open_attempt(
            rows[assignment.task_id], assignment.worker_id, now, gpus=",".join(assignment.gpus)
        )
        nodes = _gang(attempt, assignment)
        opened += nodes
        if len(nodes) > 1:
            move.data["workers"] = list(assignment.worker_ids)
        moves.append(move)
        for row in coalesced.get(assignment.task_id, ()):
            coalesced_attempt, move = _open_attempt(row, assignment.worker_id, now, into=attempt)
            opened.append(coalesced_attempt)
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


def _open_attempt(
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


def gathered(
    connection: Connection, needs: Mapping[tuple[str, str], Requirement], now: float, patience_s: float
) -> dict[tuple[str, str], Requirement]:
    """Return the needs that may be scheduled now, without tasks whose job may still bring workers that they can use."""
    elastic = {key for key, need in needs.items() if need.nodes < need.nodes_max}
    if not elastic:
        return dict(needs)
    jobs = clusters.live(connection)
    rows = tasks.by_ids(connection, [job.task_id for job in jobs])
    arrivals = clusters.arrivals(connection, [job.key_id for job in jobs])
    early = set()
    for job in jobs:
        row = rows.get(job.task_id)
        key = None if row is None else (row.requirement_key, row.project)
        if key not in elastic:
            continue
        came = arrivals.get(job.key_id, [])
        if len(came) < needs[key].nodes_max and _more_may_come(job.running_at, came, now, patience_s):
            early.add(key)
    return {key: need for key, need in needs.items() if key not in early}


def _more_may_come(running_at: float | None, came: Sequence[float], now: float, patience_s: float) -> bool:
    # Workers may arrive before the poll that sees the job running; those of a requeued job are older than it.
    if running_at is None:
        return True
    most_s = patience_s / 2
    return now - running_at <= most_s and now - max([running_at, *came]) < min(GATHER_S, most_s)
