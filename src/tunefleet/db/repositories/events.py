"""The event log: appended in the transaction of the event, read in id order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from sqlalchemy import Connection, delete, func, insert, select

from tunefleet.db.engine.bulk import Bulk
from tunefleet.db.engine.writer import note, wake
from tunefleet.db.rows import EventRow, TaskRow
from tunefleet.db.tables.core import DEFAULT_PROJECT, events, tasks, workers, workflows

_COLUMNS = (
    "project", "at", "kind", "task_id", "workflow_id", "workflow_seq", "worker_id", "data", "federation_seq",
    "campaign_seq",
)  # fmt: skip
_INSERT = Bulk(insert(events), _COLUMNS)
_WORKER: Final = "worker."
"""Prefix of worker events."""
# Prefix of command events: commands to a task's job or, without a task, to a worker.
_COMMAND: Final = "command."


@dataclass(frozen=True, slots=True)
class Event:
    """A new event; `of_task` creates one for a task."""

    kind: str
    at: float
    task_id: str | None = None
    workflow_id: str | None = None
    workflow_seq: int | None = None
    worker_id: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    project: str = DEFAULT_PROJECT
    federation_seq: int | None = None
    campaign_seq: int | None = None


def of_task(row: TaskRow, kind: str, at: float, data: dict[str, Any], *, worker_id: str | None = None) -> Event:
    """Return a new event of a task."""
    return Event(kind, at, row.id, row.workflow_id, row.workflow_seq, worker_id or row.worker_id, data, row.project)


def append(connection: Connection, new: Sequence[Event]) -> None:
    """Append events, and notify subscribers."""
    if not new:
        return
    bound = _bound(connection, {e.worker_id for e in new if _of_worker(e)})
    rows = [
        (
            bound.get(e.worker_id, e.project) if _of_worker(e) else e.project,
            e.at, e.kind, e.task_id, e.workflow_id, e.workflow_seq, e.worker_id,
            orjson.dumps(e.data).decode(), e.federation_seq, e.campaign_seq,
        )
        for e in new
    ]  # fmt: skip
    _INSERT.run(connection, rows)
    note(connection, new)
    wake(connection, "events")


def _of_worker(event: Event) -> bool:
    return event.kind.startswith(_WORKER if event.task_id is not None else (_WORKER, _COMMAND))


def _bound(connection: Connection, worker_ids: Collection[str | None]) -> dict[str | None, str]:
    """Return the projects of workers that serve a single project: their events belong to it."""
    if not worker_ids:
        return {}
    query = select(workers.c.id, workers.c.project).where(workers.c.id.in_(list(worker_ids)))
    return {id_: project for id_, project in connection.execute(query) if project != DEFAULT_PROJECT}


def after(
    connection: Connection,
    event_id: int,
    *,
    project: str,
    limit: int,
    task_id: str | None = None,
    workflow_id: str | None = None,
    kinds: Sequence[str] | None = None,
    federation_seq: int | None = None,
) -> list[EventRow]:
    """Return events after an id, oldest first; events of shared workers appear in every project."""
    seen = events.c.project == project
    if project != DEFAULT_PROJECT:
        seen |= (events.c.project == DEFAULT_PROJECT) & events.c.kind.startswith(_WORKER)
    query = select(events).where(events.c.id > event_id, seen).order_by(events.c.id).limit(limit)
    if task_id is not None:
        mine = select(tasks.c.workflow_seq).where(tasks.c.id == task_id).scalar_subquery()
        query = query.where(events.c.workflow_seq == mine, events.c.task_id == task_id)
    if workflow_id is not None:
        mine = select(workflows.c.seq).where(workflows.c.id == workflow_id).scalar_subquery()
        query = query.where(events.c.workflow_seq == mine)
    if federation_seq is not None:
        query = query.where(events.c.federation_seq == federation_seq)
    if kinds:
        query = query.where(events.c.kind.in_(list(kinds)))
    return [EventRow(*row) for row in connection.execute(query)]


def of_campaign(connection: Connection, campaign_seq: int, event_id: int, *, limit: int) -> list[EventRow]:
    """Return the events of a campaign after an id, oldest first."""
    query = select(events).where(events.c.campaign_seq == campaign_seq, events.c.id > event_id)
    return [EventRow(*row) for row in connection.execute(query.order_by(events.c.id).limit(limit))]


def last_id(connection: Connection) -> int:
    """Return the id of the newest event; 0 if there is none."""
    return connection.execute(select(func.max(events.c.id))).scalar() or 0


def delete_of_tasks(connection: Connection, rows: Sequence[TaskRow]) -> None:
    """Delete the events of deleted tasks."""
    seqs, ids = sorted({row.workflow_seq for row in rows}), [row.id for row in rows]
    connection.execute(delete(events).where(events.c.workflow_seq.in_(seqs), events.c.task_id.in_(ids)))


def delete_of_workflows(connection: Connection, workflow_seqs: Sequence[int]) -> None:
    """Delete the events of deleted workflows."""
    connection.execute(delete(events).where(events.c.workflow_seq.in_(list(workflow_seqs))))


def delete_of_federation(connection: Connection, federation_seq: int) -> None:
    """Delete the events of a deleted federation."""
    connection.execute(delete(events).where(events.c.federation_seq == federation_seq))
