"""Shards of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, case, delete, func, insert, select

from tunefleet.db.rows import TaskRow
from tunefleet.db.tables.core import tasks
from tunefleet.db.tables.federation import federations
from tunefleet.db.tables.fleet import shards
from tunefleet.lifecycle.task import TaskStatus

_OF_TASKS = select(shards).where(shards.c.task_seq.in_(bindparam("seqs", expanding=True)))
_OF_PARENTS = (
    select(shards.c.parent_seq, tasks)
    .join(tasks, tasks.c.seq == shards.c.task_seq)
    .where(shards.c.parent_seq.in_(bindparam("seqs", expanding=True)))
    .order_by(shards.c.parent_seq, shards.c.number)
)
_STATUSES = (
    select(tasks.c.status)
    .join(shards, shards.c.task_seq == tasks.c.seq)
    .where(shards.c.parent_seq == bindparam("seq"))
    .order_by(shards.c.number)
)

_parent = tasks.alias()
_FEDERATED = select(federations.c.task_seq).where(federations.c.task_seq.is_not(None))
_DONE = (
    select(shards.c.parent_seq)
    .join(_parent, _parent.c.seq == shards.c.parent_seq)
    .join(tasks, tasks.c.seq == shards.c.task_seq)
    .where(_parent.c.status == TaskStatus.RUNNING.value, shards.c.parent_seq.not_in(_FEDERATED))
    .group_by(shards.c.parent_seq)
    .having(func.min(case((tasks.c.status == TaskStatus.COMPLETED.value, 1), else_=0)) == 1)
)


class ShardRow(NamedTuple):
    """A task's place as a shard of its parent; `number` counts from 0."""

    task_seq: int
    parent_seq: int
    parent_id: str
    number: int
    total: int


def insert_all(connection: Connection, rows: Iterable[ShardRow]) -> None:
    """Store shards."""
    connection.execute(insert(shards), [row._asdict() for row in rows])


def of_tasks(connection: Connection, seqs: Sequence[int]) -> dict[int, ShardRow]:
    """Return the shard rows of tasks, by `seq`; tasks that are not shards are omitted."""
    if not seqs:
        return {}
    rows = (ShardRow(*row) for row in connection.execute(_OF_TASKS, {"seqs": list(seqs)}))
    return {row.task_seq: row for row in rows}


def of_parents(connection: Connection, seqs: Sequence[int]) -> dict[int, list[TaskRow]]:
    """Return the shards of tasks in order, by the parent's `seq`; tasks without shards are omitted."""
    found: dict[int, list[TaskRow]] = {}
    if seqs:
        for parent_seq, *row in connection.execute(_OF_PARENTS, {"seqs": list(seqs)}):
            found.setdefault(parent_seq, []).append(TaskRow(*row))
    return found


def statuses(connection: Connection, parent_seq: int) -> list[TaskStatus]:
    """Return the statuses of a task's shards, in order."""
    return [TaskStatus(status) for status in connection.execute(_STATUSES, {"seq": parent_seq}).scalars()]


def done(connection: Connection) -> list[int]:
    """Return the `seq` of running tasks whose shards are all completed; one with a federation ends with that."""
    return list(connection.execute(_DONE).scalars())


def delete_of_tasks(connection: Connection, rows: Sequence[TaskRow]) -> None:
    """Delete the shard rows of deleted tasks."""
    connection.execute(delete(shards).where(shards.c.task_seq.in_([row.seq for row in rows])))
