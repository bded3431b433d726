"""How busy workers were, for as long as it is kept."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, select, text

from tunefleet.db.engine.bulk import Bulk
from tunefleet.db.tables.fleet import worker_loads

# Both databases understand this, and SQLAlchemy has a word for it in each one's dialect only.
_NEW = "INSERT INTO worker_loads (worker_id, at, body) VALUES (:worker_id, :at, :body) ON CONFLICT DO NOTHING"
_INSERT = Bulk(text(_NEW), ["worker_id", "at", "body"])


def add(connection: Connection, rows: Sequence[tuple[str, float, str]]) -> None:
    """Store what workers told: id, unix time, JSON."""
    _INSERT.run(connection, rows)


def between(connection: Connection, worker_id: str, since: float, until: float) -> list[tuple[float, str]]:
    """Return what a worker told in a span of time, oldest first: unix time and JSON."""
    at = worker_loads.c.at
    query = select(at, worker_loads.c.body).where(worker_loads.c.worker_id == worker_id, at >= since, at <= until)
    return [(row.at, row.body) for row in connection.execute(query.order_by(at))]


def forget_before(connection: Connection, at: float) -> None:
    """Forget what is older."""
    connection.execute(delete(worker_loads).where(worker_loads.c.at < at))


def forget_worker(connection: Connection, worker_id: str) -> None:
    """Forget what a removed worker told."""
    connection.execute(delete(worker_loads).where(worker_loads.c.worker_id == worker_id))
