"""The only module that changes a task's status: many tasks together, each with its event, in the caller's transaction.

The lifecycle decides whether a change is legal; the workflow's count of open tasks is updated here. Whether a task is
retried is the caller's decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Connection, bindparam, case, insert, update

from tunefleet.db.engine.bulk import Bulk
from tunefleet.db.engine.writer import note, wake
from tunefleet.db.repositories import events
from tunefleet.db.repositories.events import Event
from tunefleet.db.rows import TaskRow
from tunefleet.db.tables.core import task_documents, tasks, workflows
from tunefleet.lifecycle import task as lifecycle
from tunefleet.lifecycle.task import TaskReason, TaskStatus

_QUEUED: Final = TaskStatus.QUEUED.value
_FINAL: Final = frozenset(status.value for status in lifecycle.FINAL)
_COLUMNS: Final = (
    "status", "reason", "error", "attempts", "failures", "losses", "attempt_id", "worker_id", "desired", "generation",
    "reached", "queue_deadline", "queued_at", "ready_at", "started_at", "finished_at", "version", "stalled_since",
)  # fmt: skip
_UPDATE = Bulk(
    update(tasks).where(tasks.c.seq == bindparam("b_seq")).values({name: bindparam(f"b_{name}") for name in _COLUMNS}),
    ["b_seq", *(f"b_{name}" for name in _COLUMNS)],
)
_parameters = attrgetter("seq", *_COLUMNS)
_left = workflows.c.open_tasks - bindparam("b_final")
_failed = workflows.c.failed_tasks + bindparam("b_failed")
_cancelled = workflows.c.cancelled_tasks + bindparam("b_cancelled")
_CLOSE = Bulk(
    update(workflows)
    .where(workflows.c.id == bindparam("b_id"))
    .values(
        open_tasks=_left,
        failed_tasks=_failed,
        cancelled_tasks=_cancelled,
        status=case((_left > 0, "running"), (_failed > 0, "failed"), (_cancelled > 0, "cancelled"), else_="completed"),
        finished_at=case((_left > 0, None), else_=bindparam("b_at")),
    ),
    ["b_id", "b_final", "b_failed", "b_cancelled", "b_at"],
)
_KINDS: Final = {
    TaskReason.READY: "task.queued",
    TaskReason.RESUMED: "task.resumed",
    TaskReason.OFFERED: "task.offered",
    TaskReason.STARTED: "task.started",
    TaskReason.PAUSED: "task.paused",
}


_INSERT = insert(tasks).returning(tasks.c.seq)
_INSERT_DOCUMENT = insert(task_documents)
_FRESH: Final[dict[str, Any]] = {
    "error": None, "attempts": 0, "failures": 0, "losses": 0, "attempt_id": None, "worker_id": None, "desired": "run",
    "generation": 0, "reached": 0, "ready_at": 0.0, "started_at": None, "finished_at": None, "version": 0,
    "stalled_since": None, "merge_key": None, "title": None, "model": None, "dataset": None, "method": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class New:
    """A new task.

    Args:
        inputs: JSON: pointer → digest and name of an artifact.
    """

    values: dict[str, Any]
    spec: str
    inputs: str
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """One change of status."""

    task: TaskRow
    reason: TaskReason
    retry: bool = False
    changes: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


def enter(connection: Connection, new: Sequence[New], now: float) -> list[TaskRow]:
    """Store new tasks, queued unless they depend on others, and append their events."""
    ready = {"status": _target(TaskStatus.PENDING.value, TaskReason.READY, False)[0], "queued_at": now}
    ready["reason"] = TaskReason.READY.value
    waiting = {"status": TaskStatus.PENDING.value, "queued_at": None, "reason": None}
    rows: list[TaskRow] = []
    for task in new:
        values = {**_FRESH, **task.values, **(waiting if task.waits else ready)}
        seq = connection.execute(_INSERT, values).scalar_one()
        connection.execute(_INSERT_DOCUMENT, {"task_seq": seq, "spec": task.spec, "inputs": task.inputs})
        rows.append(TaskRow(seq=seq, **values))
    events.append(connection, [_entered(row, now) for row in rows])
    note(connection, rows)
    if any(row.status == _QUEUED for row in rows):
        wake(connection, "placement")
    return rows


def switch(connection: Connection, moves: Sequence[Move], now: float) -> list[TaskRow]:
    """Change the status of tasks and append their events.

    Raises:
        IllegalTransition: If the lifecycle does not allow the change; nothing is written.
    """
    if not moves:
        return []
    after = [_moved(move, now) for move in moves]
    _UPDATE.run(connection, [_parameters(row) for row in after])
    events.append(connection, [_event(move, row, now) for move, row in zip(moves, after, strict=True)])
    note(connection, after)
    _close_workflows(connection, after, now)
    if any(row.status == _QUEUED for row in after):
        wake(connection, "placement")
    # Published with the commit, so that a waiting request reads the new status.
    wake(connection, *(f"task:{row.id}" for row in after))
    return after


def _moved(move: Move, now: float) -> TaskRow:
    status, reason = _target(move.task.status, move.reason, move.retry)
    version = move.task.version + 1
    fixed: dict[str, Any] = {"status": status, "reason": reason, "version": version, "stalled_since": None}
    if status == _QUEUED:
        fixed |= {"attempt_id": None, "worker_id": None, "desired": "run", "started_at": None}
    elif status in _FINAL:
        fixed["finished_at"] = now
    return move.task._replace(**{**fixed, **move.changes})


@cache
def _target(status: str, reason: TaskReason, retry: bool) -> tuple[str, str]:
    # Cached: there are few combinations and very many moves.
    return lifecycle.move(TaskStatus(status), reason, retry=retry).value, reason.value


def _entered(row: TaskRow, now: float) -> Event:
    if row.status == _QUEUED:
        return _event(Move(row, TaskReason.READY), row, now)
    return events.of_task(row, "task.pending", now, {"status": row.status})


def _event(move: Move, row: TaskRow, now: float) -> Event:
    kind = "task.retrying" if move.retry else _KINDS.get(move.reason, f"task.{row.status}")
    data: dict[str, Any] = {"status": row.status, "reason": move.reason.value, **move.data}
    if row.error is not None:
        data["error"] = row.error
    return events.of_task(row, kind, now, data, worker_id=row.worker_id or move.task.worker_id)


def _close_workflows(connection: Connection, rows: Sequence[TaskRow], now: float) -> None:
    counts: dict[str, list[int]] = {}
    for row in rows:
        if row.status in _FINAL:
            count = counts.setdefault(row.workflow_id, [0, 0, 0])
            count[0] += 1
            count[1] += row.status == TaskStatus.FAILED
            count[2] += row.status == TaskStatus.CANCELLED
    _CLOSE.run(connection, [(id_, *count, now) for id_, count in counts.items()])
