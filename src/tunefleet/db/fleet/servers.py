"""Which servers have the database open, and which of them leads.

A leader's right to write is its epoch: `fenced` checks it in the very transaction that writes, and whoever takes over
does so in a transaction that writes, too. These come one after the other, so that nothing of a leader is committed
after it was followed.
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
    """Who leads.

    Args:
        server_id: Whose turn it is; null if the last one has given it back.
        url: Under which other servers reach it; null if it has not said.
    """

    epoch: int
    server_id: str | None = None
    process: str | None = None
    url: str | None = None
    renewals: int = 0
    since: float = 0.0


class ServerRow(NamedTuple):
    """A server that is there; `renewals` grow while it is."""

    id: str
    process: str
    host: str
    url: str | None
    version: str
    started_at: float
    renewals: int = 0


def look(connection: Connection) -> LeaderRow:
    """Return who leads; nobody, of epoch 0, if nobody ever has."""
    row = connection.execute(_GET).first()
    return LeaderRow(*row) if row else LeaderRow(0)


def take(connection: Connection, seen: LeaderRow, new: LeaderRow) -> LeaderRow | None:
    """Lead, with a new epoch, if nothing has changed since the caller looked.

    Returns:
        What is stored now; null if another one was faster, or the leader is alive.
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
    """Say that the leader of an epoch is alive; false if another one has followed it."""
    at = leader.c
    done = connection.execute(update(leader).where(at.epoch == epoch).values(renewals=at.renewals + 1))
    return done.rowcount == 1


def give_back(connection: Connection, epoch: int) -> None:
    """Let another server lead at once, if the leader is still that of the epoch."""
    nobody = {"server_id": None, "process": None, "url": None}
    if connection.execute(update(leader).where(leader.c.epoch == epoch).values(**nobody)).rowcount:
        wake(connection, TOPIC)


def fenced(connection: Connection, *, operation: Callable[[Connection], T], epoch: int) -> T:
    """Run an operation of a leader.

    Raises:
        NotLeadingError: If another server has taken over; nothing is done.
    """
    now = look(connection)
    if now.epoch != epoch or now.server_id is None:
        raise NotLeadingError(
            "This server does not lead any more; nothing was changed.",
            hint="Try again in a moment.",
            detail=f"epoch {epoch}, now {now.epoch} of {now.server_id}",
        )
    return operation(connection)


def all_rows(connection: Connection) -> list[ServerRow]:
    """Return all servers, by id."""
    return [ServerRow(*row) for row in connection.execute(select(servers).order_by(servers.c.id))]


def appear(connection: Connection, row: ServerRow) -> None:
    """Store a server that starts."""
    connection.execute(delete(servers).where(servers.c.id == row.id))
    connection.execute(insert(servers).values(**row._asdict()))


def be_here(connection: Connection, row: ServerRow) -> str | None:
    """Say that a server is alive; one that was forgotten appears again.

    Returns:
        The process whose row this one has replaced; null if there was no other.
    """
    at = servers.c
    mine = (at.id == row.id) & (at.process == row.process)
    if connection.execute(update(servers).where(mine).values(renewals=at.renewals + 1)).rowcount:
        return None
    replaced: str | None = connection.scalar(select(at.process).where(at.id == row.id))
    appear(connection, row)
    return replaced


def leave(connection: Connection, processes: Iterable[str]) -> None:
    """Forget servers that have stopped, by their processes."""
    connection.execute(delete(servers).where(servers.c.process.in_(list(processes))))
