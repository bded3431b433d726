"""What people, and the elastic scaling, have decided about workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, delete, insert, select

from tunefleet.db.engine.writer import wake
from tunefleet.db.tables.fleet import worker_controls

_GET = select(worker_controls).where(worker_controls.c.worker_id == bindparam("worker_id"))
_FORGET = delete(worker_controls).where(worker_controls.c.worker_id == bindparam("b_id"))


class ControlRow(NamedTuple):
    """What was decided about one worker.

    Args:
        cordoned_at: Since when it gets nothing new, in Unix time; null if it may.
        elastic_disabled_at: Since when elastic scaling keeps it out of the pool, in Unix time; null if it does not.
    """

    worker_id: str
    cordoned_at: float | None = None
    drains: int = 0
    elastic_disabled_at: float | None = None

    @property
    def decides(self) -> bool:
        """Whether anything was decided."""
        return self.cordoned_at is not None or bool(self.drains) or self.elastic_disabled_at is not None


def get(connection: Connection, worker_id: str) -> ControlRow:
    """Return what was decided about a worker; nothing, if nothing is stored."""
    row = connection.execute(_GET, {"worker_id": worker_id}).first()
    return ControlRow(*row) if row else ControlRow(worker_id)


def all_rows(connection: Connection) -> dict[str, ControlRow]:
    """Return what was decided, by worker; workers about which nothing was are left out."""
    return {row.worker_id: ControlRow(*row) for row in connection.execute(select(worker_controls))}


def put(connection: Connection, row: ControlRow) -> None:
    """Store what was decided; placement and the worker are woken."""
    forget(connection, row.worker_id)
    if row.decides:
        connection.execute(insert(worker_controls).values(row._asdict()))
    wake(connection, "placement", f"worker:{row.worker_id}")


def rest(connection: Connection, rows: Sequence[ControlRow]) -> None:
    """Store whom elastic scaling keeps out of the pool, and whom no more; the workers themselves are not told."""
    if not rows:
        return
    connection.execute(_FORGET, [{"b_id": row.worker_id} for row in rows])
    kept = [row._asdict() for row in rows if row.decides]
    if kept:
        connection.execute(insert(worker_controls), kept)
    wake(connection, "placement")


def forget(connection: Connection, worker_id: str) -> None:
    """Forget what was decided about a worker."""
    connection.execute(delete(worker_controls).where(worker_controls.c.worker_id == worker_id))


def elastic_disabled(connection: Connection) -> frozenset[str]:
    """Return the workers that elastic scaling keeps out of the pool."""
    rows = connection.execute(
        select(worker_controls.c.worker_id).where(worker_controls.c.elastic_disabled_at.is_not(None))
    )
    return frozenset(row.worker_id for row in rows)
