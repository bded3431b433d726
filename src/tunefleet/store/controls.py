"""What people, and the elastic scaling, have decided about workers."""

from __future__ import annotations

from sqlalchemy import Connection, select

from tunefleet.store.tables_fleet import worker_controls


def elastic_disabled(connection: Connection) -> frozenset[str]:
    """Return the workers that elastic scaling keeps out of the pool."""
    rows = connection.execute(
        select(worker_controls.c.worker_id).where(worker_controls.c.elastic_disabled_at.is_not(None))
    )
    return frozenset(row.worker_id for row in rows)
