"""Relations of tasks: upstream tasks, shards, coalesced runs and run times. Functions on a connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tunefleet.db import Connection
from tunefleet.db.federations import federations
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.repositories import attempts, dependencies, shards, task_list
from tunefleet.db.repositories.shards import ShardRow
from tunefleet.db.rows import TaskRow
from tunefleet.lifecycle.task import TaskStatus


@dataclass(frozen=True, slots=True)
class Related:
    """Relations of tasks, by `seq`.

    Args:
        ran: Total run time of the ended attempts, in seconds.
    """

    upstreams: Mapping[int, Sequence[tuple[str, str]]] = field(default_factory=dict)
    wholes: Mapping[int, ShardRow] = field(default_factory=dict)
    merged: Mapping[int, str] = field(default_factory=dict)
    carried: Mapping[int, Sequence[str]] = field(default_factory=dict)
    ran: Mapping[int, float] = field(default_factory=dict)
    workflows: Mapping[int, str] = field(default_factory=dict)


def of(connection: Connection, rows: Sequence[TaskRow]) -> Related:
    """Return the relations of tasks."""
    seqs = [row.seq for row in rows]
    held = {row.attempt_id: row.seq for row in rows if row.merge_key is not None and row.attempt_id is not None}
    merged = {held[id_]: into for id_, into in attempts.merged_into(connection, list(held)).items()}
    carried = {held[id_]: found for id_, found in attempts.carried(connection, list(held)).items()}
    ran = attempts.ran(connection, seqs)
    named = task_list.workflow_names(connection, [row.workflow_seq for row in rows])
    return Related(dependencies.names(connection, seqs), shards.of_tasks(connection, seqs), merged, carried, ran, named)


def waits_for(connection: Connection, row: TaskRow) -> tuple[tuple[str, str], ...]:
    """Return id and name of the tasks that a pending task still waits for."""
    if row.status != TaskStatus.PENDING:
        return ()
    above = dependencies.upstreams(connection, [row.seq])[row.seq]
    return tuple((each.task.id, each.name) for each in above if not TaskStatus(each.task.status).final)


def reasons(connection: Connection, rows: Sequence[TaskRow], joins: Mapping[int, str]) -> dict[str, str]:
    """Return the status of pending and sharded tasks as a sentence, by task id.

    Args:
        joins: `seq` of a sharded task whose shards cannot be merged yet → what they wait for.
    """
    pending = [row for row in rows if row.status == TaskStatus.PENDING]
    above = dependencies.upstreams(connection, [row.seq for row in pending])
    found = {}
    for row in pending:
        open_ = [each for each in above[row.seq] if not TaskStatus(each.task.status).final]
        found[row.id] = f"waiting for {', '.join(f'{each.name} ({each.task.status})' for each in open_)}."
    sharded = [row for row in rows if row.status == TaskStatus.RUNNING and row.worker_id is None]
    federated = federations.of_tasks(connection, [row.seq for row in sharded])
    for seq, members in shards.of_parents(connection, [row.seq for row in sharded]).items():
        counts = Counter(part.status for part in members)
        summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        done = set(counts) == {TaskStatus.COMPLETED.value}
        suffix = f"; their files {joins.get(seq, 'are being merged')}" if done else ""
        if seq in federated:
            suffix = _federation(federated[seq])
        found[next(row.id for row in sharded if row.seq == seq)] = f"{len(members)} shards: {summary}{suffix}."
    return found


def _federation(row: FederationRow) -> str:
    versions = f"version {row.version} is its newest" if row.version else "it has no version yet"
    return f"; their federation {row.id} is {row.status}, in round {row.round}, and {versions}"
