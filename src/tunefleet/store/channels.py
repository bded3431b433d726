"""Where users want to hear of what: their channels, and what the documents of tasks name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, delete, exists, insert, select, update

from tunefleet.store.tables_fleet import notification_channels, task_notices
from tunefleet.store.writer import note

CHANGED: Final = object()
"""Noted in each transaction after which other people are to be told than before."""
_WISHES = select(task_notices).where(task_notices.c.task_id.in_(bindparam("ids", expanding=True)))


class ChannelRow(NamedTuple):
    """A channel; `events` are separated by commas, `secret` signs what goes to a webhook."""

    seq: int
    id: str
    project: str
    owner: str
    name: str
    format: str
    target: str
    secret: str | None
    events: str
    everyone: int
    enabled: int
    created_at: float


class WishRow(NamedTuple):
    """What a task's document wants to be told to whom: to a channel, or else to `target`."""

    task_id: str
    number: int
    channel_id: str | None
    format: str
    target: str
    events: str


def changed(connection: Connection) -> None:
    """Let whoever remembers channels look again."""
    note(connection, [CHANGED])


def insert_one(connection: Connection, values: Mapping[str, Any]) -> ChannelRow:
    """Store a channel; its owner must not have one with that name."""
    connection.execute(insert(notification_channels), [dict(values)])
    changed(connection)
    row = by_id(connection, str(values["id"]))
    assert row is not None, "it was just stored"
    return row


def by_id(connection: Connection, channel_id: str) -> ChannelRow | None:
    """Return a channel."""
    query = select(notification_channels).where(notification_channels.c.id == channel_id)
    row = connection.execute(query).first()
    return ChannelRow(*row) if row else None


def by_name(connection: Connection, name: str, *, project: str, owner: str) -> ChannelRow | None:
    """Return an owner's channel with a name."""
    at = notification_channels.c
    query = select(notification_channels).where(at.project == project, at.owner == owner, at.name == name)
    row = connection.execute(query).first()
    return ChannelRow(*row) if row else None


def all_rows(connection: Connection) -> list[ChannelRow]:
    """Return all channels, oldest first."""
    query = select(notification_channels).order_by(notification_channels.c.seq)
    return [ChannelRow(*row) for row in connection.execute(query)]


def change(connection: Connection, channel_id: str, values: Mapping[str, Any]) -> None:
    """Change columns of a channel."""
    if values:
        at = notification_channels.c.id == channel_id
        connection.execute(update(notification_channels).where(at).values(dict(values)))
        changed(connection)


def remove(connection: Connection, channel_id: str) -> None:
    """Forget a channel, and that tasks named it."""
    connection.execute(delete(notification_channels).where(notification_channels.c.id == channel_id))
    connection.execute(delete(task_notices).where(task_notices.c.channel_id == channel_id))
    changed(connection)


def add_wishes(connection: Connection, rows: Iterable[WishRow]) -> None:
    """Store what documents of tasks want."""
    values = [row._asdict() for row in rows]
    if values:
        connection.execute(insert(task_notices), values)
        changed(connection)


def any_wish(connection: Connection) -> bool:
    """Whether the document of any task wants anything."""
    return bool(connection.execute(select(exists().where(task_notices.c.number >= 0))).scalar())


def wishes_of(connection: Connection, task_ids: Sequence[str]) -> dict[str, list[WishRow]]:
    """Return what the documents of tasks want, by task; tasks without wishes are left out."""
    found: dict[str, list[WishRow]] = {}
    if task_ids:
        for row in connection.execute(_WISHES.order_by(task_notices.c.number), {"ids": list(task_ids)}):
            found.setdefault(row.task_id, []).append(WishRow(*row))
    return found


def delete_of_tasks(connection: Connection, task_ids: Sequence[str]) -> None:
    """Forget what the documents of removed tasks wanted."""
    connection.execute(delete(task_notices).where(task_notices.c.task_id.in_(list(task_ids))))
