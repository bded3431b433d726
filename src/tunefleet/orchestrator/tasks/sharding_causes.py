"""Why a part of a spread task is stopped: another part failed or was cancelled, or the whole was cancelled."""

from __future__ import annotations

from collections.abc import Sequence

from tunefleet.db import Connection
from tunefleet.db.repositories import shards, tasks
from tunefleet.db.rows import TaskRow
from tunefleet.lifecycle.task import TaskReason, TaskStatus

# The reason, and a sentence for the user.
Cause = tuple[TaskReason, str]


def causes(connection: Connection, rows: Sequence[TaskRow]) -> dict[int, Cause]:
    """Return why parts are stopped whose whole has ended, by `seq`; what is no such part is left out."""
    places = shards.of_tasks(connection, [row.seq for row in rows])
    wholes = tasks.by_seqs(connection, sorted({place.parent_seq for place in places.values()}))
    ended = [whole for whole in wholes if TaskStatus(whole.status).final]
    parts = shards.of_parents(connection, [whole.seq for whole in ended])
    found = {whole.seq: _cause(whole, parts[whole.seq]) for whole in ended}
    return {seq: found[place.parent_seq] for seq, place in places.items() if place.parent_seq in found}


def of_asked(connection: Connection, rows: Sequence[TaskRow]) -> dict[int, Cause]:
    """Return the same for those of some tasks that were asked to end."""
    return causes(connection, [row for row in rows if row.desired == "cancel"])


def _cause(whole: TaskRow, parts: Sequence[TaskRow]) -> Cause:
    failed = next((part for part in parts if part.status == TaskStatus.FAILED), None)
    if whole.status == TaskStatus.FAILED and failed is not None:
        why = f": {failed.error}" if failed.error else "."
        return TaskReason.SIBLING_FAILED, f"Its sibling {failed.name} ({failed.id}) failed{why}"
    # Those that were stopped because of that one have another reason.
    one = next((part for part in parts if part.reason in {TaskReason.CANCELLED_BY_USER, TaskReason.ABORTED}), None)
    if whole.reason == TaskReason.UPSTREAM_CANCELLED and one is not None:
        return TaskReason.UPSTREAM_CANCELLED, f"Its sibling {one.name} ({one.id}) was cancelled."
    return TaskReason.CANCELLED_BY_USER, f"{whole.name} ({whole.id}), whose part it is, was cancelled."
