"""Endpoints: their names, their tasks and their usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, and_, func, insert, select, update

from tunefleet.db.rows import TaskRow
from tunefleet.db.tables.core import tasks
from tunefleet.db.tables.operations import endpoint_tasks, endpoint_usage, endpoints

_usage = endpoint_usage.c


class EndpointRow(NamedTuple):
    """An endpoint."""

    seq: int
    project: str
    name: str
    owner: str
    created_at: float
    idle_task_id: str | None = None


class UsageKey(NamedTuple):
    """What usage is counted by."""

    endpoint_seq: int
    key_id: str
    day: str


class Usage(NamedTuple):
    """Requests that were answered, and their tokens."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


def by_name(connection: Connection, project: str, name: str) -> EndpointRow | None:
    """Return an endpoint."""
    query = select(endpoints).where(endpoints.c.project == project, endpoints.c.name == name)
    row = connection.execute(query).first()
    return EndpointRow(*row) if row else None


def of_project(connection: Connection, project: str) -> list[EndpointRow]:
    """Return the endpoints of a project by name."""
    query = select(endpoints).where(endpoints.c.project == project).order_by(endpoints.c.name)
    return [EndpointRow(*row) for row in connection.execute(query)]


def insert_one(connection: Connection, project: str, name: str, owner: str, at: float) -> EndpointRow:
    """Store an endpoint."""
    connection.execute(insert(endpoints).values(project=project, name=name, owner=owner, created_at=at))
    found = by_name(connection, project, name)
    assert found is not None
    return found


def set_owner(connection: Connection, seq: int, owner: str) -> None:
    """Change the owner of an endpoint."""
    connection.execute(update(endpoints).where(endpoints.c.seq == seq).values(owner=owner))


def set_idle_task(connection: Connection, seq: int, task_id: str | None) -> None:
    """Store which task the next request starts again."""
    connection.execute(update(endpoints).where(endpoints.c.seq == seq).values(idle_task_id=task_id))


def add_task(connection: Connection, endpoint_seq: int, task_seq: int) -> None:
    """Store which endpoint a task serves."""
    connection.execute(insert(endpoint_tasks).values(task_seq=task_seq, endpoint_seq=endpoint_seq))


def tasks_of(connection: Connection, endpoint_seq: int) -> list[TaskRow]:
    """Return the tasks of an endpoint, newest first."""
    on = and_(endpoint_tasks.c.task_seq == tasks.c.seq, endpoint_tasks.c.endpoint_seq == endpoint_seq)
    query = select(tasks).join(endpoint_tasks, on).order_by(tasks.c.seq.desc())
    return [TaskRow(*row) for row in connection.execute(query)]


def of_task(connection: Connection, task_seq: int) -> EndpointRow | None:
    """Return the endpoint that a task serves."""
    query = select(endpoints).join(endpoint_tasks, endpoint_tasks.c.endpoint_seq == endpoints.c.seq)
    row = connection.execute(query.where(endpoint_tasks.c.task_seq == task_seq)).first()
    return EndpointRow(*row) if row else None


def add_usage(connection: Connection, counted: Mapping[UsageKey, Usage]) -> None:
    """Add to the usage."""
    for key, more in counted.items():
        where = and_(_usage.endpoint_seq == key.endpoint_seq, _usage.key_id == key.key_id, _usage.day == key.day)
        changes = {name: _usage[name] + value for name, value in more._asdict().items()}
        # Only the leader counts, so no other server inserts the row in between.
        if connection.execute(update(endpoint_usage).where(where).values(changes)).rowcount == 0:
            connection.execute(insert(endpoint_usage).values(**key._asdict(), **more._asdict()))


def usage_of(connection: Connection, endpoint_seqs: Sequence[int]) -> dict[int, Usage]:
    """Return the total usage of endpoints that have any."""
    sums = [func.sum(_usage[name]) for name in Usage._fields]
    query = select(_usage.endpoint_seq, *sums).where(_usage.endpoint_seq.in_(endpoint_seqs))
    found = connection.execute(query.group_by(_usage.endpoint_seq))
    return {seq: Usage(*(int(value) for value in values)) for seq, *values in found}
