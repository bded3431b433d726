"""Equal tasks as one run: which ones are equal, and which of them come along when one is placed.

Only tasks of one owner in one project, and only where the executor of the worker says that it computes several at once.
Each keeps an attempt, a token, a result and files of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import queue, resumes
from tunefleet.db.rows import TaskRow
from tunefleet.orchestrator.scheduling import cluster_state
from tunefleet.orchestrator.scheduling.queue import Line
from tunefleet.placement import Assignment, Board, Candidate, Decisions, WorkerState
from tunefleet.placement.match import lacks
from tunefleet.spec import TASK_KINDS

# Of our kinds; of a kind of another package the executor says whether it merges.
MERGEABLE: Final = frozenset({"inference", "rag"})
# What equal tasks may have each for itself.
_OWN: Final = frozenset({"data", "notify"})
# The same, in `inference`.
_OWN_WORDS: Final = frozenset({"system_prompt", "systemPrompt"})
# So many more are looked at, because some of them may not go where the first one goes.
_SPARE: Final = 32


def key_of(owner: str, project: str, spec: Mapping[str, Any], inputs: Mapping[str, Mapping[str, str]]) -> str | None:
    """Return what equal tasks share; null if tasks of the kind are never merged.

    Args:
        inputs: Pointer into the spec → digest and name of an artifact.
    """
    if spec["taskType"] in TASK_KINDS and spec["taskType"] not in MERGEABLE:
        return None
    shared = {name: value for name, value in spec.items() if name not in _OWN}
    words = shared.get("inference")
    if isinstance(words, Mapping):
        shared["inference"] = {name: value for name, value in words.items() if name not in _OWN_WORDS}
    files = {pointer: ref["digest"] for pointer, ref in inputs.items() if pointer.partition(".")[0] not in _OWN}
    text = orjson.dumps([project, owner, shared, files], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:32]


def assign(
    connection: Connection,
    board: Board,
    line: Line,
    fleet: Sequence[WorkerState],
    *,
    now: float,
    largest: int,
) -> tuple[Decisions, dict[str, list[TaskRow]]]:
    """Assign candidates; of equal ones the first goes ahead, and takes others along where its worker merges.

    Args:
        largest: How many tasks may run as one; 1 merges nothing.

    Returns:
        The decisions, and for each task that others go along with, those.
    """
    kinds = frozenset(kind for worker in fleet for kind in worker.merges)
    if largest < 2 or not kinds & line.kinds:
        return board.assign(line), {}
    by_id = {worker.id: worker for worker in fleet}
    assigned: list[Assignment] = []
    waiting: list[str] = []
    along: dict[str, list[TaskRow]] = {}
    gone: set[str] = set()
    kept: dict[str, str] = {}
    todo, rows = line.all(), line.rows
    while todo:
        heads, todo = _first_of_each(todo, rows, kinds)
        found = board.assign(heads)
        waiting += found.waiting
        for each in found.assignments:
            row, worker = rows[each.task_id], by_id[each.worker_id]
            gone.add(row.id)
            if row.merge_key is not None and row.kind in worker.merges:
                along[row.id] = _equal(connection, row, worker, gone, now)[: largest - 1]
                gone.update(other.id for other in along[row.id])
        assigned += found.assignments
        kept = found.kept
        todo = [candidate for candidate in todo if candidate.task_id not in gone]
    left = tuple(task_id for task_id in waiting if task_id not in gone)
    return Decisions(tuple(assigned), left, kept), {id_: others for id_, others in along.items() if others}


def _first_of_each(
    todo: Iterable[Candidate], rows: Mapping[str, TaskRow], kinds: frozenset[str]
) -> tuple[list[Candidate], list[Candidate]]:
    """Split candidates into those that are the first of their equals, or have none, and the others."""
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


def _equal(connection: Connection, row: TaskRow, worker: WorkerState, gone: set[str], now: float) -> list[TaskRow]:
    """Return the waiting tasks that are equal to one and may go along with it, in the order of the queue."""
    found = queue.equal(connection, row.merge_key or "", now=now, count=len(gone) + _SPARE)
    found = [other for other in found if other.id not in gone]
    ids = [other.id for other in found]
    # Who has a checkpoint somewhere goes where that is, and who was offered here in vain goes elsewhere.
    kept = resumes.of_tasks(connection, ids).keys()
    avoid = cluster_state.avoided(connection, ids, now)
    needs = cluster_state.needs(connection, {other.requirement_key for other in found})
    return [
        other
        for other in found
        if other.id not in kept
        and worker.id not in avoid.get(other.id, ())
        and lacks(cluster_state.whose(needs[other.requirement_key], other.project), worker) is None
    ]
