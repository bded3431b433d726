"""Trace contexts of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection, bindparam, delete, insert, select

from tunefleet.db.engine.bulk import Bulk
from tunefleet.db.tables.operations import task_traces


class TraceRow(NamedTuple):
    """Trace context of a task.

    Args:
        traceparent: The task's span in W3C format.
        parent: The span of its submission, in the same format; `None` if there was none.
    """

    task_id: str
    traceparent: str
    parent: str | None = None


_INSERT: Final = Bulk(insert(task_traces), TraceRow._fields)
_OF = select(task_traces).where(task_traces.c.task_id.in_(bindparam("ids", expanding=True)))


def add(connection: Connection, rows: Iterable[TraceRow]) -> None:
    """Store the trace contexts of new tasks."""
    _INSERT.run(connection, list(rows))


def of_tasks(connection: Connection, ids: Sequence[str]) -> dict[str, TraceRow]:
    """Return the trace contexts of tasks, by task; tasks without one are omitted."""
    if not ids:
        return {}
    return {row[0]: TraceRow(*row) for row in connection.execute(_OF, {"ids": list(ids)})}


def delete_of_tasks(connection: Connection, ids: Sequence[str]) -> None:
    """Delete the trace contexts of deleted tasks."""
    connection.execute(delete(task_traces).where(task_traces.c.task_id.in_(list(ids))))
