"""The event log: appended in the transaction that it tells of, read in the order of ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import Connection, delete, func, insert, select

from tunefleet.store.rows import EventRow
from tunefleet.store.tables import DEFAULT_PROJECT, events
from tunefleet.store.writer import wake

_INSERT = insert(events)


@dataclass(frozen=True, slots=True)
class Event:
    """An event that is to be appended."""

    kind: str
    at: float
    task_id: str | None = None
    workflow_id: str | None = None
    worker_id: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    project: str = DEFAULT_PROJECT


def append(connection: Connection, new: Sequence[Event]) -> None:
    """Append events, and wake who waits for them."""
    if not new:
        return
    connection.execute(
        _INSERT,
        [
            {
                "project": event.project,
                "at": event.at,
                "kind": event.kind,
                "task_id": event.task_id,
                "workflow_id": event.workflow_id,
                "worker_id": event.worker_id,
                "data": orjson.dumps(event.data).decode(),
            }
            for event in new
        ],
    )
    wake(connection, "events")


def after(
    connection: Connection,
    event_id: int,
    *,
    project: str,
    limit: int,
    task_id: str | None = None,
    workflow_id: str | None = None,
    kinds: Sequence[str] | None = None,
) -> list[EventRow]:
    """Return events with a greater id, oldest first."""
    query = select(events).where(events.c.id > event_id, events.c.project == project).order_by(events.c.id).limit(limit)
    if task_id is not None:
        query = query.where(events.c.task_id == task_id)
    if workflow_id is not None:
        query = query.where(events.c.workflow_id == workflow_id)
    if kinds:
        query = query.where(events.c.kind.in_(list(kinds)))
    return [EventRow(*row) for row in connection.execute(query)]


def last_id(connection: Connection) -> int:
    """Return the id of the newest event; 0 if there is none."""
    return connection.execute(select(func.max(events.c.id))).scalar() or 0


def delete_of_tasks(connection: Connection, task_ids: Sequence[str]) -> None:
    """Forget the events of tasks that are removed."""
    connection.execute(delete(events).where(events.c.task_id.in_(list(task_ids))))
