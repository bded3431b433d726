"""Size of the stored journals of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection, bindparam, insert, select, update

from tunefleet.db.engine.bulk import Bulk
from tunefleet.db.tables.operations import journal_room


class RoomRow(NamedTuple):
    """Totals of a task's stored journals; `told` and `series` are lists of names as JSON.

    `summary`: JSON of the latest and best metrics and the loss curve, for lists; null before the first point.
    """

    task_id: str
    records: int = 0
    characters: int = 0
    point_characters: int = 0
    told: str = "[]"
    series: str = "[]"
    summary: str | None = None


_ONE: Final = select(journal_room).where(journal_room.c.task_id == bindparam("task_id"))
_INSERT: Final = Bulk(insert(journal_room), RoomRow._fields)
_UPDATE: Final = Bulk(
    update(journal_room)
    .where(journal_room.c.task_id == bindparam("b_task_id"))
    .values({name: bindparam(name) for name in RoomRow._fields[1:]}),
    ["b_task_id", *RoomRow._fields[1:]],
)


def get(connection: Connection, task_id: str) -> RoomRow | None:
    """Return the totals of a task; `None` before its first record."""
    row = connection.execute(_ONE, {"task_id": task_id}).first()
    return RoomRow(*row) if row else None


def summaries(connection: Connection, task_ids: Sequence[str]) -> dict[str, str]:
    """Return the summaries of tasks, as JSON by id; tasks without points are omitted."""
    if not task_ids:
        return {}
    query = select(journal_room.c.task_id, journal_room.c.summary).where(
        journal_room.c.task_id.in_(list(task_ids)), journal_room.c.summary.is_not(None)
    )
    return {task_id: text for task_id, text in connection.execute(query)}


def put(connection: Connection, row: RoomRow, *, new: bool) -> None:
    """Store the totals of a task."""
    (_INSERT if new else _UPDATE).run(connection, [row])
