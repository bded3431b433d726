"""What belongs to tasks: upstream tasks, shards, coalesced runs, run times, tags, notes; read on a connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tunefleet.db import Connection
from tunefleet.db.repositories import attempts, dependencies, shards, task_list, task_tags, tasks
from tunefleet.db.repositories.shards import ShardRow
from tunefleet.db.rows import TaskRow
from tunefleet.lifecycle.task import TaskStatus


@dataclass(frozen=True, slots=True)
class Related:
    """Relations of tasks, by `seq`.

    Args:
        ran: Total run time of the ended attempts, in seconds.
        notes: Notes of the tasks that have any.
    """

    upstreams: Mapping[int, Sequence[tuple[str, str]]] = field(default_factory=dict)
    wholes: Mapping[int, ShardRow] = field(default_factory=dict)
    merged: Mapping[int, str] = field(default_factory=dict)
    carried: Mapping[int, Sequence[str]] = field(default_factory=dict)
    ran: Mapping[int, float] = field(default_factory=dict)
    workflows: Mapping[int, str] = field(default_factory=dict)
    tags: Mapping[int, Sequence[str]] = field(default_factory=dict)
    notes: Mapping[int, str] = field(default_factory=dict)


def of(connection: Connection, rows: Sequence[TaskRow]) -> Related:
    """Return the relations of tasks."""
    seqs = [row.seq for row in rows]
    held = {row.attempt_id: row.seq for row in rows if row.merge_key is not None and row.attempt_id is not None}
    merged = {held[id_]: into for id_, into in attempts.merged_into(connection, list(held)).items()}
    carried = {held[id_]: found for id_, found in attempts.carried(connection, list(held)).items()}
    ran = attempts.ran(connection, seqs)
    named = task_list.workflow_names(connection, [row.workflow_seq for row in rows])
    return Related(
        dependencies.names(connection, seqs),
        shards.of_tasks(connection, seqs),
        merged,
        carried,
        ran,
        named,
        task_tags.of_tasks(connection, seqs),
        tasks.notes(connection, seqs),
    )


def waits_for(connection: Connection, row: TaskRow) -> tuple[tuple[str, str], ...]:
    """Return id and name of the tasks that a pending task still waits for."""
    if row.status != TaskStatus.PENDING:
        return ()
    above = dependencies.upstreams(connection, [row.seq])[row.seq]
    return tuple((each.task.id, each.name) for each in above if not TaskStatus(each.task.status).final)
