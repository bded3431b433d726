"""The audit log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, select

from tunefleet.db.tables.operations import audit_log

_at = audit_log.c


class AuditRow(NamedTuple):
    """A mutating request; `seq` is 0 until it is stored."""

    seq: int
    at: float
    key_id: str | None
    actor: str | None
    role: str | None
    project: str | None
    address: str
    method: str
    route: str
    target: str | None
    status: int
    request_id: str


def add(connection: Connection, rows: Sequence[AuditRow]) -> None:
    """Append rows."""
    connection.execute(insert(audit_log), _new(rows))


def page(
    connection: Connection,
    *,
    project: str | None,
    actor: str | None,
    route: str | None,
    since: float | None,
    before: int | None,
    limit: int,
) -> list[AuditRow]:
    """Return rows, newest first."""
    query = select(audit_log).order_by(_at.seq.desc()).limit(limit)
    if project is not None:
        query = query.where(_at.project == project)
    if actor is not None:
        query = query.where((_at.actor == actor) | (_at.key_id == actor))
    if route is not None:
        query = query.where(_at.route.contains(route, autoescape=True))
    if since is not None:
        query = query.where(_at.at >= since)
    if before is not None:
        query = query.where(_at.seq < before)
    return [AuditRow(*row) for row in connection.execute(query)]


def forget_before(connection: Connection, at: float) -> None:
    """Delete older rows."""
    connection.execute(delete(audit_log).where(_at.at < at))


def _new(rows: Sequence[AuditRow]) -> list[dict[str, object]]:
    return [{name: value for name, value in row._asdict().items() if name != "seq"} for row in rows]
