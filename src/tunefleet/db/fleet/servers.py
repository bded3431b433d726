"""Servers on the database, and which of them leads.

A leader's fencing token is its epoch: `fenced` checks it in the transaction that writes, and a takeover writes, too.
Writing transactions run one after another, so that a former leader can commit nothing after a takeover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

from sqlalchemy import Connection, delete, insert, select, update

from tunefleet.db.engine.writer import wake
from tunefleet.db.tables.operations import leader, servers
from tunefleet.errors import NotLeadingError

T = TypeVar("T")
TOPIC: Final = "leader"
_ROW: Final = 1
_GET = select(leader.c.epoch, leader.c.server_id, leader.c.process, leader.c.url, leader.c.renewals, leader.c.since)


class LeaderRow(NamedTuple):
    """The leader.

    Args:
        server_id: Id of the leader; `None` if the last one released the lead.
        url: URL for other servers; `None` if it has not published one.
    """

    epoch: int
    server_id: str | None = None
    process: str | None = None
    url: str | None = None
    renewals: int = 0
    since: float = 0.0


class ServerRow(NamedTuple):
    """A running server; `renewals` grows while it is alive."""

    id: str
    process: str
    host: str
    url: str | None
    version: str
    started_at: float
    renewals: int = 0


def look(connection: Connection) -> LeaderRow:
    """Return the leader; before the first election, a row of epoch 0 without a server."""
    row = connection.execute(_GET).first()
    return LeaderRow(*row) if row else LeaderRow(0)


def take(connection: Connection, seen: LeaderRow, new: LeaderRow) -> LeaderRow | None:
    """Become the leader with a new epoch, if nothing has changed since the caller's `look`.

    Returns:
        The new row; `None` if another server was faster, or the leader is alive.
    """
    now = look(connection)
    if now != seen:
        return None
    values = {**new._asdict(), "epoch": now.epoch + 1}
    if now.epoch == 0:
        connection.execute(insert(leader).values(number=_ROW, **values))
    else:
        connection.execute(update(leader).values(**values))
    wake(connection, TOPIC)
    return LeaderRow(**values)


def renew(connection: Connection, epoch: int) -> bool:
    """Renew the lease of an epoch's leader; false if another server has taken over."""
    at = leader.c
    done = connection.execute(update(leader).where(at.epoch == epoch).values(renewals=at.renewals + 1))
    return done.rowcount == 1


def give_back(connection: Connection, epoch: int) -> None:
    """Release the lead immediately, if the epoch is still current."""
    no_leader = {"server_id": None, "process": None, "url": None}
    if connection.execute(update(leader).where(leader.c.epoch == epoch).values(**no_leader)).rowcount:
        wake(connection, TOPIC)


def fenced(connection: Connection, *, operation: Callable[[Connection], T], epoch: int) -> T:
    """Run an operation of the leader.

    Raises:
        NotLeadingError: If another server has taken over; nothing is changed.
    """
    now = look(connection)
    if now.epoch != epoch or now.server_id is None:
        raise NotLeadingError(
            "This server is no longer the leader. Nothing was changed.",
            hint="Try again in a moment.",
            detail=f"epoch {epoch}, now {now.epoch} of {now.server_id}",
        )
    return operation(connection)


def all_rows(connection: Connection) -> list[ServerRow]:
    """Return all servers, by id."""
    return [ServerRow(*row) for row in connection.execute(select(servers).order_by(servers.c.id))]


def appear(connection: Connection, row: ServerRow) -> None:
    """Store a starting server."""
    connection.execute(delete(servers).where(servers.c.id == row.id))
    connection.execute(insert(servers).values(**row._asdict()))


def be_here(connection: Connection, row: ServerRow) -> str | None:
    """Renew a server's sign of life; a deleted server is stored again.

    Returns:
        The process whose row this one replaced; `None` if there was none.
    """
    at = servers.c
    mine = (at.id == row.id) & (at.process == row.process)
    if connection.execute(update(servers).where(mine).values(renewals=at.renewals + 1)).rowcount:
        return None
    replaced: str | None = connection.scalar(select(at.process).where(at.id == row.id))
    appear(connection, row)
    return replaced


def leave(connection: Connection, processes: Iterable[str]) -> None:
    """Delete servers that have stopped, by their processes."""
    connection.execute(delete(servers).where(servers.c.process.in_(list(processes))))
