"""Federations over the parts of a training task: which of their workers are there, queued, or over.

A part takes part under one name, whatever it runs on and however often it is tried. Where it stands is read from its
task, so that nothing has to be kept in step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.federations import federation_updates
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.repositories import shards
from tunefleet.lifecycle.task import TaskStatus

_HERE: Final = frozenset({TaskStatus.DISPATCHED, TaskStatus.RUNNING})


def worker_of(number: int) -> str:
    """Return the name under which a part takes part; they are counted from 0."""
    return f"part-{number}"


def statuses(connection: Connection, row: FederationRow) -> Mapping[str, TaskStatus] | None:
    """Return where each part stands, by its name as a worker; null if the federation is no task's."""
    if row.task_seq is None:
        return None
    found = shards.statuses(connection, row.task_seq)
    return {worker_of(number): status for number, status in enumerate(found)}


def may_come(connection: Connection, row: FederationRow) -> list[str] | None:
    """Return whose updates a new round can have: of parts that are not over, and those that lie here already.

    Null if the federation is no task's.
    """
    found = statuses(connection, row)
    if found is None:
        return None
    lying = {each.worker for each in federation_updates.waiting(connection, row.seq)}
    return sorted({worker for worker, status in found.items() if not status.final} | lying)


def is_deserted(connection: Connection, row: FederationRow, number: int, least: int) -> bool:
    """Whether so many parts are over that a round cannot get enough updates any more."""
    coming = may_come(connection, row)
    if coming is None:
        return False
    return len(federation_updates.counted_workers(connection, row.seq, number).union(coming)) < least


def awaited(connection: Connection, row: FederationRow, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return for whom of those who take part in a round it waits: of a task's parts, those that a worker has."""
    found = statuses(connection, row)
    if found is None:
        return names
    return tuple(name for name in names if found.get(name) in _HERE)
