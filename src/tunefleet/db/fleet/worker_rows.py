"""Rows of workers and their load history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, text, update

from tunefleet.db.engine.bulk import Bulk
from tunefleet.db.engine.writer import wake
from tunefleet.db.repositories import controls, discards
from tunefleet.db.rows import WorkerRow
from tunefleet.db.tables.core import cordons, workers
from tunefleet.db.tables.fleet import worker_loads

# The session of a worker that has left: it matches no process.
NO_SESSION: Final = ""
_WITH_CAPABILITIES = select(
    workers.c.id, workers.c.status, workers.c.session, workers.c.capabilities, workers.c.project
).order_by(workers.c.id)
_WATCHED = select(workers.c.id, workers.c.status, workers.c.session, workers.c.state_id)
_GET = select(workers).where(workers.c.id == bindparam("b_id"))
_COUNT = select(func.count()).select_from(workers).where(workers.c.key_id == bindparam("b_key"))
_SEEN = update(workers).where(workers.c.id == bindparam("b_id")).values(last_seen_at=bindparam("b_at"))
# Both databases support this clause, but SQLAlchemy only offers it in dialect-specific constructs.
_NEW = "INSERT INTO worker_loads (worker_id, at, body) VALUES (:worker_id, :at, :body) ON CONFLICT DO NOTHING"
_INSERT = Bulk(text(_NEW), ["worker_id", "at", "body"])


def count_of_key(connection: Connection, key_id: str) -> int:
    """Return how many workers registered with a key."""
    return int(connection.execute(_COUNT, {"b_key": key_id}).scalar_one())


def get(connection: Connection, worker_id: str) -> WorkerRow | None:
    """Return a worker."""
    row = connection.execute(_GET, {"b_id": worker_id}).first()
    return WorkerRow(*row) if row else None


def all_rows(connection: Connection) -> list[WorkerRow]:
    """Return all workers, by id."""
    return [WorkerRow(*row) for row in connection.execute(select(workers).order_by(workers.c.id))]


def with_capabilities(connection: Connection) -> Sequence[Row[str, str, str, str, str]]:
    """Return id, status, session, capabilities and project of all workers, by id."""
    # Fetch all rows in one call: there are thousands, and a fetch per row costs as much as the row.
    return connection.execute(_WITH_CAPABILITIES).all()


def watched(connection: Connection) -> Sequence[Row[str, str, str, str]]:
    """Return id, status, session and state folder of all workers, without their capabilities: polled every second."""
    return connection.execute(_WATCHED).all()


def seen_since(connection: Connection, since: float) -> set[str]:
    """Return the workers last seen since a time, as far as that is stored."""
    return set(connection.scalars(select(workers.c.id).where(workers.c.last_seen_at >= since)))


def put(connection: Connection, row: WorkerRow) -> None:
    """Store a worker, new or changed, and publish the change to copies of the fleet."""
    values = row._asdict()
    if connection.execute(update(workers).where(workers.c.id == row.id).values(values)).rowcount == 0:
        connection.execute(insert(workers).values(values))
    wake(connection, "fleet", "placement")


def set_status(connection: Connection, worker_id: str, status: str) -> None:
    """Store whether a worker is `online`, `lost` or `offline`."""
    connection.execute(update(workers).where(workers.c.id == worker_id).values(status=status))
    wake(connection, "fleet", "placement")


def set_left(connection: Connection, worker_id: str) -> None:
    """Store that a worker has left: it is offline, and reports of its session are ignored."""
    connection.execute(update(workers).where(workers.c.id == worker_id).values(status="offline", session=NO_SESSION))
    wake(connection, "fleet", "placement")


def set_seen(connection: Connection, times: Iterable[tuple[str, float]]) -> None:
    """Store when workers were last seen."""
    rows = [{"b_id": worker_id, "b_at": at} for worker_id, at in times]
    if rows:
        connection.execute(_SEEN, rows)


def remove(connection: Connection, worker_id: str) -> None:
    """Delete a worker."""
    connection.execute(delete(workers).where(workers.c.id == worker_id))
    connection.execute(delete(cordons).where(cordons.c.worker_id == worker_id))
    controls.forget(connection, worker_id)
    forget_worker(connection, worker_id)
    discards.forget_worker(connection, worker_id)
    wake(connection, "fleet")


def add(connection: Connection, rows: Sequence[tuple[str, float, str]]) -> None:
    """Store load reports of workers: id, Unix time, JSON."""
    _INSERT.run(connection, rows)


def between(connection: Connection, worker_id: str, since: float, until: float) -> list[tuple[float, str]]:
    """Return a worker's load reports in a time range, oldest first: Unix time and JSON."""
    at = worker_loads.c.at
    query = select(at, worker_loads.c.body).where(worker_loads.c.worker_id == worker_id, at >= since, at <= until)
    return [(row.at, row.body) for row in connection.execute(query.order_by(at))]


def forget_before(connection: Connection, at: float) -> None:
    """Delete older load reports."""
    connection.execute(delete(worker_loads).where(worker_loads.c.at < at))


def forget_worker(connection: Connection, worker_id: str) -> None:
    """Delete the load reports of a deleted worker."""
    connection.execute(delete(worker_loads).where(worker_loads.c.worker_id == worker_id))
