"""Coalescing: run equal tasks as one.

Only tasks of one owner in one project, and only where the worker's executor supports it. Each task keeps its own
attempt, token, result and files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.repositories import attempts, queue
from tunefleet.db.rows import TaskRow
from tunefleet.orchestrator.fleet import avoidance, cluster_state
from tunefleet.orchestrator.fleet.avoidance import RetryRules
from tunefleet.orchestrator.scheduling.queue import QueueReader
from tunefleet.placement import Assignment, Candidate, Decisions, FreeCapacity, WorkerState
from tunefleet.placement.match import lacks

# Read this many more, because some may not run on the worker of the first.
_SPARE: Final = 32


def assign(
    connection: Connection,
    board: FreeCapacity,
    reader: QueueReader,
    fleet: Sequence[WorkerState],
    *,
    retries: RetryRules,
    largest: int,
) -> tuple[Decisions, dict[str, list[TaskRow]]]:
    """Assign candidates; the first of equal ones takes the others with it if its worker coalesces the kind.

    Args:
        largest: Maximum number of tasks in one run; 1 disables coalescing.

    Returns:
        The decisions, and task id → the tasks that are coalesced into it.
    """
    kinds = frozenset(kind for worker in fleet for kind in worker.merges)
    if largest < 2 or not kinds & reader.kinds:
        return board.assign(reader), {}
    by_id = {worker.id: worker for worker in fleet}
    assigned: list[Assignment] = []
    waiting: list[str] = []
    coalesced: dict[str, list[TaskRow]] = {}
    placed: set[str] = set()
    reserved: dict[str, str] = {}
    todo, rows = reader.all(), reader.rows
    # Each round tries the next of the equal tasks that were not taken along: it may fit another worker.
    while todo:
        heads, todo = _first_of_each(todo, rows, kinds)
        found = board.assign(heads)
        waiting += found.waiting
        for each in found.assignments:
            row, worker = rows[each.task_id], by_id[each.worker_id]
            placed.add(row.id)
            if row.merge_key is not None and row.kind in worker.merges:
                coalesced[row.id] = _equal(connection, row, worker, placed, fleet, retries)[: largest - 1]
                placed.update(other.id for other in coalesced[row.id])
        assigned += found.assignments
        reserved = found.reserved
        todo = [candidate for candidate in todo if candidate.task_id not in placed]
    left = tuple(task_id for task_id in waiting if task_id not in placed)
    return Decisions(tuple(assigned), left, reserved), {id_: others for id_, others in coalesced.items() if others}


def _first_of_each(
    todo: Iterable[Candidate], rows: Mapping[str, TaskRow], kinds: frozenset[str]
) -> tuple[list[Candidate], list[Candidate]]:
    """Split candidates into the first of each group of equal ones, and the others."""
    first, others, seen = [], [], set()
    for candidate in todo:
        row = rows[candidate.task_id]
        key = row.merge_key if row.kind in kinds else None
        if key is not None and key in seen:
            others.append(candidate)
            continue
        seen.add(key)
        first.append(candidate)
    return first, others


def _equal(
    connection: Connection,
    row: TaskRow,
    worker: WorkerState,
    placed: set[str],
    fleet: Sequence[WorkerState],
    retries: RetryRules,
) -> list[TaskRow]:
    """Return the queued tasks that are equal to one and may run on its worker, in queue order."""
    found = queue.equal(connection, row.merge_key or "", now=retries.now, count=len(placed) + _SPARE)
    found = [other for other in found if other.id not in placed]
    ids = [other.id for other in found]
    # A task with a checkpoint goes to the worker that has it; a task that this worker did not accept goes elsewhere.
    bound = attempts.resumes_of(connection, ids).keys()
    needs = cluster_state.needs(connection, {other.requirement_key for other in found})
    avoid = avoidance.avoided(connection, found, needs, fleet, retries)
    return [
        other
        for other in found
        if other.id not in bound
        and worker.id not in avoid.get(other.id, ())
        and lacks(cluster_state.with_project(needs[other.requirement_key], other.project), worker) is None
    ]
