"""In which projects it is told what happens to a worker."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection

from tunefleet.db import Database
from tunefleet.db.fleet import worker_rows
from tunefleet.db.repositories import events
from tunefleet.db.repositories.events import Event
from tunefleet.db.rows import WorkerRow


def _worker(name: str, project: str) -> WorkerRow:
    return WorkerRow(name, project, "ada", "key-1", f"state-{name}", "s", "online", "{}", 0.0, None)


def test_a_worker_of_one_project_is_told_of_there_alone_and_one_of_all_everywhere(target: Path | str) -> None:
    database = Database.open(target)

    def fill(connection: Connection) -> None:
        for name, project in (("shared", "default"), ("own", "vision")):
            worker_rows.put(connection, _worker(name, project))
        told = [Event("worker.online", 1.0, worker_id=name) for name in ("shared", "own", "gone")]
        # A verb for the worker itself belongs to no task.
        told.append(Event("command.asked", 1.0, worker_id="own"))
        # What a federation calls its worker is nobody's worker.
        events.append(connection, [*told, Event("federation.update", 1.0, worker_id="own", project="default")])

    def seen(project: str) -> list[tuple[str, str | None]]:
        read = database.read(lambda connection: events.after(connection, 0, project=project, limit=10))
        return [(row.kind.partition(".")[0], row.worker_id) for row in read.result(30)]

    database.write(fill).result(30)
    shared = [("worker", "shared"), ("worker", "gone")]
    assert seen("default") == [*shared, ("federation", "own")]
    assert seen("vision") == [shared[0], ("worker", "own"), shared[1], ("command", "own")]
    assert seen("speech") == shared
    database.close()
