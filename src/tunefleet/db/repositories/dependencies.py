"""Dependencies between tasks: the edges of pipelines, what the end of a task affects, and shards with their parents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BindParameter,
    Connection,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    select,
    union,
    union_all,
)

from tunefleet.db.rows import TaskRow
from tunefleet.db.tables.core import artifacts, task_inputs, tasks
from tunefleet.db.tables.federation import federations
from tunefleet.db.tables.fleet import shards, task_edges
from tunefleet.lifecycle.task import FINAL, TaskStatus

_FINAL: Final = tuple(status.value for status in FINAL)
_DEPENDENT, _PARENT, _PART = range(3)
_ENDED: Final[BindParameter[Any]] = bindparam("ended", expanding=True)
# One statement: it runs at the end of every task, and most tasks have neither dependents nor parts.
_TOUCHED = union_all(
    select(literal(_DEPENDENT), task_edges.c.task_seq).where(task_edges.c.upstream_seq.in_(_ENDED)),
    select(literal(_PARENT), shards.c.parent_seq).where(shards.c.task_seq.in_(_ENDED)),
    select(literal(_PART), shards.c.task_seq).where(shards.c.parent_seq.in_(_ENDED)),
)
_OF_TASKS = (
    select(task_edges.c.task_seq, task_edges.c.upstream_id, task_edges.c.name)
    .where(task_edges.c.task_seq.in_(bindparam("seqs", expanding=True)))
    .order_by(task_edges.c.task_seq, task_edges.c.upstream_seq)
)
_UPSTREAMS = (
    select(task_edges.c.task_seq, task_edges.c.name, tasks)
    .join(tasks, tasks.c.seq == task_edges.c.upstream_seq)
    .where(task_edges.c.task_seq.in_(bindparam("seqs", expanding=True)))
    .order_by(task_edges.c.task_seq, task_edges.c.upstream_seq)
)
_SHARDS_OF = select(shards).where(shards.c.task_seq.in_(bindparam("seqs", expanding=True)))
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


class EdgeRow(NamedTuple):
    """A task's dependency on another task, with the name that its workflow file uses."""

    task_seq: int
    upstream_seq: int
    upstream_id: str
    name: str


class Upstream(NamedTuple):
    """A task that another one depends on, with the name that the dependent's workflow file uses."""

    name: str
    task: TaskRow


@dataclass(frozen=True, slots=True)
class Touched:
    """Tasks affected by the end of others, by `seq`: their dependents, parents and shards."""

    dependents: frozenset[int]
    parents: frozenset[int]
    parts: frozenset[int]


def insert_all(connection: Connection, rows: Iterable[EdgeRow]) -> None:
    """Store edges."""
    values = [row._asdict() for row in rows]
    if values:
        connection.execute(insert(task_edges), values)


def touched(connection: Connection, ended: Sequence[int]) -> Touched:
    """Return the tasks that the end of others affects."""
    found: tuple[set[int], set[int], set[int]] = set(), set(), set()
    for kind, seq in connection.execute(_TOUCHED, {"ended": list(ended)}):
        found[kind].add(seq)
    return Touched(*map(frozenset, found))


def names(connection: Connection, seqs: Sequence[int]) -> dict[int, list[tuple[str, str]]]:
    """Return id and name of tasks' dependencies, by `seq`."""
    found: dict[int, list[tuple[str, str]]] = {}
    if seqs:
        for seq, upstream_id, name in connection.execute(_OF_TASKS, {"seqs": list(seqs)}):
            found.setdefault(seq, []).append((upstream_id, name))
    return found


def upstreams(connection: Connection, seqs: Sequence[int]) -> Mapping[int, list[Upstream]]:
    """Return the tasks that tasks depend on, by `seq`."""
    found: dict[int, list[Upstream]] = {seq: [] for seq in seqs}
    if seqs:
        for seq, name, *row in connection.execute(_UPSTREAMS, {"seqs": list(seqs)}):
            found[seq].append(Upstream(name, TaskRow(*row)))
    return found


def dependents(connection: Connection, seq: int) -> list[str]:
    """Return the ids of the tasks that depend on a task."""
    query = select(tasks.c.id).join(task_edges, task_edges.c.task_seq == tasks.c.seq)
    return list(connection.execute(query.where(task_edges.c.upstream_seq == seq).order_by(tasks.c.seq)).scalars())


def needing(connection: Connection, seqs: Sequence[int]) -> list[str]:
    """Return the ids of unfinished tasks that still need these tasks, which therefore cannot be deleted."""
    upstream = tasks.alias()
    # A task needs its dependencies until it has ended: every new start may load a checkpoint of one. It also needs the
    # tasks that produced its inputs.
    waiting = select(task_edges.c.task_seq).where(task_edges.c.upstream_seq.in_(list(seqs)))
    reading = (
        select(tasks.c.seq)
        .join(task_inputs, task_inputs.c.task_id == tasks.c.id)
        .join(artifacts, artifacts.c.id == task_inputs.c.artifact_id)
        .join(upstream, upstream.c.id == artifacts.c.task_id)
        .where(upstream.c.seq.in_(list(seqs)))
    )
    found = set(connection.execute(union(waiting, reading)).scalars()) - set(seqs)
    still = select(tasks.c.id).where(tasks.c.seq.in_(found), tasks.c.status.not_in(_FINAL)).order_by(tasks.c.seq)
    return list(connection.execute(still).scalars())


def workflows_needed(connection: Connection, workflow_seqs: Sequence[int]) -> set[int]:
    """Return which of these workflows have a task that an unfinished task still needs."""
    upstream = tasks.alias()
    still = upstream.c.workflow_seq.in_(list(workflow_seqs)), tasks.c.status.not_in(_FINAL)
    waiting = (
        select(upstream.c.workflow_seq)
        .join(task_edges, task_edges.c.upstream_seq == upstream.c.seq)
        .join(tasks, tasks.c.seq == task_edges.c.task_seq)
        .where(*still)
    )
    reading = (
        select(upstream.c.workflow_seq)
        .join(artifacts, artifacts.c.task_id == upstream.c.id)
        .join(task_inputs, task_inputs.c.artifact_id == artifacts.c.id)
        .join(tasks, tasks.c.id == task_inputs.c.task_id)
        .where(*still)
    )
    return set(connection.execute(union(waiting, reading)).scalars())


def delete_of_tasks(connection: Connection, rows: Sequence[TaskRow]) -> None:
    """Delete the dependencies of deleted tasks; their dependents keep theirs."""
    connection.execute(delete(task_edges).where(task_edges.c.task_seq.in_([row.seq for row in rows])))


class ShardRow(NamedTuple):
    """A task's place as a shard of its parent; `number` counts from 0."""

    task_seq: int
    parent_seq: int
    parent_id: str
    number: int
    total: int


def insert_shards(connection: Connection, rows: Iterable[ShardRow]) -> None:
    """Store shards."""
    connection.execute(insert(shards), [row._asdict() for row in rows])


def shards_of(connection: Connection, seqs: Sequence[int]) -> dict[int, ShardRow]:
    """Return the shard rows of tasks, by `seq`; tasks that are not shards are omitted."""
    if not seqs:
        return {}
    rows = (ShardRow(*row) for row in connection.execute(_SHARDS_OF, {"seqs": list(seqs)}))
    return {row.task_seq: row for row in rows}


def shards_of_parents(connection: Connection, seqs: Sequence[int]) -> dict[int, list[TaskRow]]:
    """Return the shards of tasks in order, by the parent's `seq`; tasks without shards are omitted."""
    found: dict[int, list[TaskRow]] = {}
    if seqs:
        for parent_seq, *row in connection.execute(_OF_PARENTS, {"seqs": list(seqs)}):
            found.setdefault(parent_seq, []).append(TaskRow(*row))
    return found


def shard_statuses(connection: Connection, parent_seq: int) -> list[TaskStatus]:
    """Return the statuses of a task's shards, in order."""
    return [TaskStatus(status) for status in connection.execute(_STATUSES, {"seq": parent_seq}).scalars()]


def parents_done(connection: Connection) -> list[int]:
    """Return the `seq` of running tasks whose shards are all completed; one with a federation ends with that."""
    return list(connection.execute(_DONE).scalars())


def delete_shards(connection: Connection, rows: Sequence[TaskRow]) -> None:
    """Delete the shard rows of deleted tasks."""
    connection.execute(delete(shards).where(shards.c.task_seq.in_([row.seq for row in rows])))
