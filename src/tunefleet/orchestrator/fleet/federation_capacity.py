"""How many shards of a federated training run a fleet can run at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.federations import federations
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.repositories import dependencies, tasks
from tunefleet.db.rows import TaskRow
from tunefleet.lifecycle.federation import FederationStatus
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.placement import Candidate, FreeCapacity, Policy, Requirement, WorkerState, only
from tunefleet.spec.options.federation_options import FederationSpec
from tunefleet.spec.tasks.federated_training import FederatedTrainingSpec

_STARTED: Final = frozenset({TaskStatus.DISPATCHED, TaskStatus.RUNNING})


def shortage(spec: Mapping[str, Any], need: Requirement, fleet: Sequence[WorkerState]) -> tuple[str, bool] | None:
    """Explain how a fleet is too small for a federated training run.

    Returns:
        A clause, and whether rounds cannot complete because of it; None if all shards can run at the same time, none
        can run at all, or the task is not a federated training run.
    """
    federation = spec.get("federation")
    parts = federation.get("workers") if isinstance(federation, Mapping) else None
    if not isinstance(federation, Mapping) or not isinstance(parts, int) or spec.get("shard") is not None:
        return None
    concurrent = _at_a_time(need, fleet, parts)
    if concurrent in {0, parts}:
        return None
    least = federation.get("min_workers", 2)
    few = isinstance(least, int) and concurrent < least and federation.get("wait_s") != 0
    more = f"a round needs {least} at the same time, so it waits for more workers (`tunefleet up --workers {parts}`)"
    then = more if few else "the others join when slots are free"
    return f"a federation of {parts} parts, of which this fleet runs {concurrent} at a time: {then}.", few


def held_back(
    connection: Connection, rows: Sequence[TaskRow], needs: Mapping[str, Requirement], fleet: Sequence[WorkerState]
) -> dict[str, str]:
    """Find queued shards of federations that would wait in vain on a worker: too few can run at the same time.

    Args:
        rows: Queued tasks.
        needs: Task id → its requirement.
        fleet: The workers that serve the tasks.

    Returns:
        Task id → the pending reason.
    """
    # Only shards have a # in their name: all other tasks cost no query.
    parts = [row for row in rows if "#" in row.name and not _has_own_worker(needs[row.id])]
    places = dependencies.shards_of(connection, [row.seq for row in parts])
    made = federations.of_tasks(connection, sorted({place.parent_seq for place in places.values()}))
    open_ones = {seq: row for seq, row in made.items() if not FederationStatus(row.status).final}
    found: dict[int, str | None] = {}
    held = {}
    for row in parts:
        place = places.get(row.seq)
        if place is None or place.parent_seq not in open_ones:
            continue
        if place.parent_seq not in found:
            found[place.parent_seq] = _too_few(connection, open_ones[place.parent_seq], row, needs[row.id], fleet)
        if (why := found[place.parent_seq]) is not None:
            held[row.id] = why
    return held


def _too_few(
    connection: Connection, federation: FederationRow, row: TaskRow, need: Requirement, fleet: Sequence[WorkerState]
) -> str | None:
    """Return the pending reason of a federation's queued shards, if a round cannot get its updates."""
    statuses = dependencies.shard_statuses(connection, federation.task_seq or 0)
    # A round also counts the updates of shards that have ended, so that no more than the unfinished ones are needed.
    least = min(
        FederationSpec.model_validate_json(federation.spec).min_workers, sum(not status.final for status in statuses)
    )
    started = sum(status in _STARTED for status in statuses)
    online = together(need, fleet, least)
    if online >= least or started + _count(need, usable(fleet), least) >= least or not _waits(connection, row):
        return None
    word = "is" if online == 1 else "are"
    return f"waiting: its federation needs {least} workers at the same time, and {online} {word} online."


def together(need: Requirement, fleet: Sequence[WorkerState], parts: int) -> int:
    """Return how many shards the online workers could run at the same time without other tasks, up to `parts`."""
    return _count(need, [emptied(worker) for worker in usable(fleet)], parts)


def usable(fleet: Sequence[WorkerState]) -> list[WorkerState]:
    """Return the workers that are online and get new tasks."""
    return [worker for worker in fleet if worker.present and worker.closed is None and not worker.pulls]


def _waits(connection: Connection, row: TaskRow) -> bool:
    """Whether a shard waits for the others after an upload; otherwise the shards may also run one after another."""
    spec = orjson.loads(tasks.document(connection, row).as_run)
    return FederatedTrainingSpec.model_validate(spec["federation"]).patience_s > 0


def _has_own_worker(need: Requirement) -> bool:
    return any(tag.startswith(only("")) for tag in need.tags)


def _at_a_time(need: Requirement, fleet: Sequence[WorkerState], parts: int) -> int:
    """Return how many of the shards fit on a fleet that is otherwise idle."""
    return _count(need, [_idle(worker) for worker in fleet], parts)


def _count(need: Requirement, fleet: Sequence[WorkerState], parts: int) -> int:
    # Asks the scheduler's own placement, so that the answer cannot differ from what it will do.
    candidates = [Candidate(f"part-{number}", need, float(number)) for number in range(parts)]
    return len(FreeCapacity(fleet, Policy()).assign(candidates).assignments)


def _idle(worker: WorkerState) -> WorkerState:
    """Return a registered worker as if it were online, open and without tasks."""
    gpus = tuple(replace(gpu, free_bytes=None, used_by=None) for gpu in worker.gpus)
    return replace(emptied(worker), present=True, free=dict(worker.slots), cordoned=frozenset(), closed=None, gpus=gpus)


def emptied(worker: WorkerState) -> WorkerState:
    """Return a worker without its tasks."""
    return replace(
        worker,
        free=dict(worker.slots if worker.takes is None else worker.takes),
        takes=None,
        cpu_taken=0,
        memory_taken=0,
        memory_free_bytes=None,
        taken=frozenset(),
        gpus=tuple(replace(gpu, free_bytes=None) for gpu in worker.gpus),
        kept_for=None,
    )
