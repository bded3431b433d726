"""Federations over the shards of a training task: which of them are running, queued or finished.

A shard keeps its worker name on any machine and in any attempt. Its status is read from its task, not stored twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.federations import federation_updates
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.repositories import shards
from tunefleet.lifecycle.task import TaskStatus

_ASSIGNED: Final = frozenset({TaskStatus.DISPATCHED, TaskStatus.RUNNING})


def worker_of(number: int) -> str:
    """Return the worker name of a shard; shards are numbered from 0."""
    return f"part-{number}"


def statuses(connection: Connection, row: FederationRow) -> Mapping[str, TaskStatus] | None:
    """Return the status of each shard by worker name; None if the federation belongs to no task."""
    if row.task_seq is None:
        return None
    found = shards.statuses(connection, row.task_seq)
    return {worker_of(number): status for number, status in enumerate(found)}


def expected_workers(connection: Connection, row: FederationRow) -> list[str] | None:
    """Return the workers that a new round can count on: unfinished shards, and those whose update already waits.

    None if the federation belongs to no task.
    """
    found = statuses(connection, row)
    if found is None:
        return None
    waiting = {each.worker for each in federation_updates.waiting(connection, row.seq)}
    return sorted({worker for worker, status in found.items() if not status.final} | waiting)


def has_too_few_left(connection: Connection, row: FederationRow, number: int, least: int) -> bool:
    """Whether too few shards are unfinished for a round to get enough updates."""
    coming = expected_workers(connection, row)
    if coming is None:
        return False
    return len(federation_updates.counted_workers(connection, row.seq, number).union(coming)) < least


def awaited(connection: Connection, row: FederationRow, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the participants that a round waits for: of a task's shards, those assigned to a worker."""
    found = statuses(connection, row)
    if found is None:
        return names
    return tuple(name for name in names if found.get(name) in _ASSIGNED)
