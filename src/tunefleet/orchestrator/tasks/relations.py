"""Relations of tasks: upstream tasks, shards and why they are stopped, coalesced runs, retries, tags, notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tunefleet.db import Connection
from tunefleet.db.repositories import attempts, dependencies, task_list, tasks, workflows
from tunefleet.db.repositories.dependencies import ShardRow
from tunefleet.db.rows import TaskRow, WorkflowRow
from tunefleet.errors import ConflictError
from tunefleet.lifecycle.task import TaskReason, TaskStatus

# The reason, and a sentence for the user.
Cause = tuple[TaskReason, str]


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
        dependencies.shards_of(connection, seqs),
        merged,
        carried,
        ran,
        named,
        tasks.tags_of(connection, seqs),
        tasks.notes(connection, seqs),
    )


def waits_for(connection: Connection, row: TaskRow) -> tuple[tuple[str, str], ...]:
    """Return id and name of the tasks that a pending task still waits for."""
    if row.status != TaskStatus.PENDING:
        return ()
    above = dependencies.upstreams(connection, [row.seq])[row.seq]
    return tuple((each.task.id, each.name) for each in above if not TaskStatus(each.task.status).final)


def shard_stop_causes(connection: Connection, rows: Sequence[TaskRow]) -> dict[int, Cause]:
    """Return why shards of ended parent tasks are stopped, by `seq`; other tasks are left out."""
    memberships = dependencies.shards_of(connection, [row.seq for row in rows])
    parents = tasks.by_seqs(connection, sorted({membership.parent_seq for membership in memberships.values()}))
    ended = [parent for parent in parents if TaskStatus(parent.status).final]
    siblings = dependencies.shards_of_parents(connection, [parent.seq for parent in ended])
    found = {parent.seq: _cause(parent, siblings[parent.seq]) for parent in ended}
    return {
        seq: found[membership.parent_seq] for seq, membership in memberships.items() if membership.parent_seq in found
    }


def causes_of_cancelled(connection: Connection, rows: Sequence[TaskRow]) -> dict[int, Cause]:
    """Return the same for the tasks that are being cancelled."""
    return shard_stop_causes(connection, [row for row in rows if row.desired == "cancel"])


def _cause(parent: TaskRow, siblings: Sequence[TaskRow]) -> Cause:
    failed = next((sibling for sibling in siblings if sibling.status == TaskStatus.FAILED), None)
    if parent.status == TaskStatus.FAILED and failed is not None:
        why = f": {failed.error}" if failed.error else "."
        return TaskReason.SIBLING_FAILED, f"Its sibling {failed.name} ({failed.id}) failed{why}"
    # The shard that was cancelled first: those stopped because of it have another reason.
    one = next(
        (sibling for sibling in siblings if sibling.reason in {TaskReason.CANCELLED_BY_USER, TaskReason.ABORTED}), None
    )
    if parent.reason == TaskReason.UPSTREAM_CANCELLED and one is not None:
        return TaskReason.UPSTREAM_CANCELLED, f"Its sibling {one.name} ({one.id}) was cancelled."
    return TaskReason.CANCELLED_BY_USER, f"Its parent task {parent.name} ({parent.id}) was cancelled."


def newest_retries(connection: Connection, rows: Sequence[WorkflowRow]) -> dict[str, WorkflowRow]:
    """Return the newest retry of workflows: id → the last workflow of its chain of retries."""
    found: dict[str, WorkflowRow] = {}
    ahead = {row.id: row.retried_as for row in rows if row.retried_as is not None}
    while ahead:
        known = workflows.by_ids(connection, sorted(set(ahead.values())))
        # A removed retry is ignored.
        found |= {id_: known[newer] for id_, newer in ahead.items() if newer in known}
        ahead = {id_: after for id_, newer in ahead.items() if newer in known and (after := known[newer].retried_as)}
    return found


def refuse_second_retry(connection: Connection, workflow_id: str) -> None:
    """Refuse a second retry while the first is running or has completed.

    Raises:
        ConflictError: If the newest retry is running or has completed.
    """
    row = workflows.by_ids(connection, [workflow_id]).get(workflow_id)
    newer = newest_retries(connection, [row]).get(workflow_id) if row is not None else None
    if newer is not None and newer.status in {"running", "completed"}:
        how = "is running" if newer.status == "running" else "has completed"
        raise ConflictError(
            f"Workflow {workflow_id} was retried as {newer.id}, which {how}.",
            hint=f"See `tunefleet show {newer.id}`, or run it once more with `tunefleet retry --again {workflow_id}`.",
        )


def computed(connection: Connection, rows: Iterable[TaskRow]) -> set[int]:
    """Return the `seq` of tasks of which only the delivery failed: the server has their results."""
    undelivered = [
        row.seq for row in rows if row.status == TaskStatus.FAILED and row.reason == TaskReason.DELIVERY_FAILED
    ]
    return {seq for seq, document in tasks.documents(connection, undelivered).items() if document.result is not None}
