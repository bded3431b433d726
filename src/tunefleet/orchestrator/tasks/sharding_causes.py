"""Why a shard is stopped: another shard failed or was cancelled, or the parent task was cancelled."""

from __future__ import annotations

from collections.abc import Sequence

from tunefleet.db import Connection
from tunefleet.db.repositories import shards, tasks
from tunefleet.db.rows import TaskRow
from tunefleet.lifecycle.task import TaskReason, TaskStatus

# The reason, and a sentence for the user.
Cause = tuple[TaskReason, str]


def causes(connection: Connection, rows: Sequence[TaskRow]) -> dict[int, Cause]:
    """Return why shards of ended parent tasks are stopped, by `seq`; other tasks are left out."""
    memberships = shards.of_tasks(connection, [row.seq for row in rows])
    parents = tasks.by_seqs(connection, sorted({membership.parent_seq for membership in memberships.values()}))
    ended = [parent for parent in parents if TaskStatus(parent.status).final]
    siblings = shards.of_parents(connection, [parent.seq for parent in ended])
    found = {parent.seq: _cause(parent, siblings[parent.seq]) for parent in ended}
    return {
        seq: found[membership.parent_seq] for seq, membership in memberships.items() if membership.parent_seq in found
    }


def of_asked(connection: Connection, rows: Sequence[TaskRow]) -> dict[int, Cause]:
    """Return the same for the tasks that are being cancelled."""
    return causes(connection, [row for row in rows if row.desired == "cancel"])


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
