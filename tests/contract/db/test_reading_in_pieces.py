"""Long tables are read in pieces, and what is written after that on the same connection is written all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import insert, select

from tunefleet.db import Connection, Database
from tunefleet.db.repositories import journal, logs, training_protocol
from tunefleet.db.tables.core import meta


def _log(connection: Connection) -> bytes:
    logs.add_chunk(connection, task_id="task-1", offset=0, data=b"some ")
    logs.add_chunk(connection, task_id="task-1", offset=5, data=b"lines")
    return logs.read(connection, "task-1", offset=2, limit=6)


def _points(connection: Connection) -> list[int]:
    launch = journal.add_launch(connection, task_id="task-1", launch_id="launch-1", attempt_id="attempt-1", at=1.0)
    points = [("task-1", launch.number, seq, "train", seq + 1, None, 1.0, None, None, 0, "{}") for seq in range(200)]
    journal.add_records(connection, points, [])
    # Whoever has seen enough stops before the end.
    return [point.step for point, _ in zip(training_protocol.newest_points(connection, launch), range(3), strict=False)]


@pytest.mark.parametrize(("read", "found"), [(_log, b"me lin"), (_points, [200, 199, 198])])
def test_a_write_after_it_is_a_plain_one(
    database: Database, read: Callable[[Connection], object], found: object
) -> None:
    assert database.write(read).result(60) == found
    # The writer keeps its connection: what one operation does to it, every later one meets.
    database.write(lambda connection: connection.execute(insert(meta).values(name="later", value="there"))).result(60)
    kept = database.read(lambda c: c.execute(select(meta.c.value).where(meta.c.name == "later")).scalar_one())
    assert kept.result(60) == "there"
