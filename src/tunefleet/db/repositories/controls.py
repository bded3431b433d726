"""Decisions about workers by admins and by elastic scaling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, delete, insert, select

from tunefleet.db.engine.writer import wake
from tunefleet.db.tables.fleet import worker_controls

_GET = select(worker_controls).where(worker_controls.c.worker_id == bindparam("worker_id"))
_FORGET = delete(worker_controls).where(worker_controls.c.worker_id == bindparam("b_id"))


class ControlRow(NamedTuple):
    """Decisions about one worker.

    Args:
        cordoned_at: Unix time of the cordon; `None` if it is not cordoned.
        elastic_disabled_at: Unix time since when elastic scaling keeps it on standby; `None` if it does not.
    """

    worker_id: str
    cordoned_at: float | None = None
    drains: int = 0
    elastic_disabled_at: float | None = None

    @property
    def decides(self) -> bool:
        """Whether any decision is set."""
        return self.cordoned_at is not None or bool(self.drains) or self.elastic_disabled_at is not None


def get(connection: Connection, worker_id: str) -> ControlRow:
    """Return the decisions about a worker; an empty row if there are none."""
    row = connection.execute(_GET, {"worker_id": worker_id}).first()
    return ControlRow(*row) if row else ControlRow(worker_id)


def all_rows(connection: Connection) -> dict[str, ControlRow]:
    """Return the decisions by worker; workers without any are omitted."""
    return {row.worker_id: ControlRow(*row) for row in connection.execute(select(worker_controls))}


def put(connection: Connection, row: ControlRow) -> None:
    """Store decisions, and notify placement and the worker."""
    forget(connection, row.worker_id)
    if row.decides:
        connection.execute(insert(worker_controls).values(row._asdict()))
    wake(connection, "placement", f"worker:{row.worker_id}")


def rest(connection: Connection, rows: Sequence[ControlRow]) -> None:
    """Store which workers elastic scaling keeps on standby; the workers are not notified."""
    if not rows:
        return
    connection.execute(_FORGET, [{"b_id": row.worker_id} for row in rows])
    kept = [row._asdict() for row in rows if row.decides]
    if kept:
        connection.execute(insert(worker_controls), kept)
    wake(connection, "placement")


def forget(connection: Connection, worker_id: str) -> None:
    """Delete the decisions about a worker."""
    connection.execute(delete(worker_controls).where(worker_controls.c.worker_id == worker_id))


def elastic_disabled(connection: Connection) -> frozenset[str]:
    """Return the workers that elastic scaling keeps on standby."""
    rows = connection.execute(
        select(worker_controls.c.worker_id).where(worker_controls.c.elastic_disabled_at.is_not(None))
    )
    return frozenset(row.worker_id for row in rows)
