"""Which tasks wait for which: the edges of pipelines, and what an end of a task touches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import BindParameter, Connection, bindparam, delete, insert, literal, select, union, union_all

from tunefleet.db.rows import TaskRow
from tunefleet.db.tables.core import artifacts, task_inputs, tasks
from tunefleet.db.tables.fleet import shards, task_edges
from tunefleet.lifecycle.task import FINAL

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


class EdgeRow(NamedTuple):
    """That a task waits for another one, and what its document calls that one."""

    task_seq: int
    upstream_seq: int
    upstream_id: str
    name: str


class Upstream(NamedTuple):
    """A task that another one waits for, under the name that the other one's document gives it."""

    name: str
    task: TaskRow


@dataclass(frozen=True, slots=True)
class Touched:
    """Whom the end of tasks concerns, by `seq`: who waits for them, whose parts they are, which parts they have."""

    dependents: frozenset[int]
    parents: frozenset[int]
    parts: frozenset[int]


def insert_all(connection: Connection, rows: Iterable[EdgeRow]) -> None:
    """Store edges."""
    values = [row._asdict() for row in rows]
    if values:
        connection.execute(insert(task_edges), values)


def touched(connection: Connection, ended: Sequence[int]) -> Touched:
    """Return whom the end of tasks concerns."""
    found: tuple[set[int], set[int], set[int]] = set(), set(), set()
    for kind, seq in connection.execute(_TOUCHED, {"ended": list(ended)}):
        found[kind].add(seq)
    return Touched(*map(frozenset, found))


def names(connection: Connection, seqs: Sequence[int]) -> dict[int, list[tuple[str, str]]]:
    """Return id and name of the tasks that tasks wait for, or have waited for, by `seq`."""
    found: dict[int, list[tuple[str, str]]] = {}
    if seqs:
        for seq, upstream_id, name in connection.execute(_OF_TASKS, {"seqs": list(seqs)}):
            found.setdefault(seq, []).append((upstream_id, name))
    return found


def upstreams(connection: Connection, seqs: Sequence[int]) -> Mapping[int, list[Upstream]]:
    """Return the tasks that tasks wait for, by `seq`."""
    found: dict[int, list[Upstream]] = {seq: [] for seq in seqs}
    if seqs:
        for seq, name, *row in connection.execute(_UPSTREAMS, {"seqs": list(seqs)}):
            found[seq].append(Upstream(name, TaskRow(*row)))
    return found


def dependents(connection: Connection, seq: int) -> list[str]:
    """Return the ids of the tasks that wait for a task, or have waited for it."""
    query = select(tasks.c.id).join(task_edges, task_edges.c.task_seq == tasks.c.seq)
    return list(connection.execute(query.where(task_edges.c.upstream_seq == seq).order_by(tasks.c.seq)).scalars())


def needing(connection: Connection, seqs: Sequence[int]) -> list[str]:
    """Return the ids of other tasks that still need these, which cannot be removed.

    A task needs what it waited for until it has ended: it may load a checkpoint of it at every new start. It needs what
    made its inputs as well.
    """
    upstream = tasks.alias()
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
    """Return which of these workflows have a task that a task which has not ended still needs."""
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
    """Forget what removed tasks waited for; who waited for them still tells it."""
    connection.execute(delete(task_edges).where(task_edges.c.task_seq.in_([row.seq for row in rows])))
