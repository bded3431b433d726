"""Size of the stored journals of tasks."""

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import Connection, bindparam, insert, select, update

from tunefleet.db.engine.bulk import Bulk
from tunefleet.db.tables.operations import journal_room


class RoomRow(NamedTuple):
    """Totals of a task's stored journals; `told` and `series` are lists of names as JSON."""

    task_id: str
    records: int = 0
    characters: int = 0
    point_characters: int = 0
    told: str = "[]"
    series: str = "[]"


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


def put(connection: Connection, row: RoomRow, *, new: bool) -> None:
    """Store the totals of a task."""
    (_INSERT if new else _UPDATE).run(connection, [row])
