"""To which trace tasks belong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection, bindparam, delete, insert, select

from tunefleet.db.engine.bulk import Bulk
from tunefleet.db.tables.operations import task_traces


class TraceRow(NamedTuple):
    """Where a task stands in a trace.

    Args:
        traceparent: Names the span of the whole task, in W3C's form.
        parent: The span that its submit came with, likewise; null if it came with none.
    """

    task_id: str
    traceparent: str
    parent: str | None = None


_INSERT: Final = Bulk(insert(task_traces), TraceRow._fields)
_OF = select(task_traces).where(task_traces.c.task_id.in_(bindparam("ids", expanding=True)))


def add(connection: Connection, rows: Iterable[TraceRow]) -> None:
    """Store to which trace new tasks belong."""
    _INSERT.run(connection, list(rows))


def of_tasks(connection: Connection, ids: Sequence[str]) -> dict[str, TraceRow]:
    """Return where tasks stand, by task; those that belong to no trace are left out."""
    if not ids:
        return {}
    return {row[0]: TraceRow(*row) for row in connection.execute(_OF, {"ids": list(ids)})}


def delete_of_tasks(connection: Connection, ids: Sequence[str]) -> None:
    """Forget removed tasks."""
    connection.execute(delete(task_traces).where(task_traces.c.task_id.in_(list(ids))))
