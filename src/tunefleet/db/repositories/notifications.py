"""Notifications, channels, and subscriptions of tasks.

Notifications to one destination form a lane, which is delivered in order, so that only the first one of a lane is ever
due.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, bindparam, delete, exists, func, insert, select, update

from tunefleet.db.engine.bulk import Bulk
from tunefleet.db.engine.writer import note
from tunefleet.db.tables.core import events
from tunefleet.db.tables.fleet import notification_channels, notifications, task_notices

WAITING: Final = "waiting"
_at = notifications.c
_lane: ColumnElement[str] = func.coalesce(_at.channel_id, _at.target)
_HEADS = (
    select(_lane.label("lane"), func.min(_at.seq).label("seq")).where(_at.state == WAITING).group_by(_lane).subquery()
)
_DUE = select(_HEADS.c.lane, _at.next_at).join(notifications, _at.seq == _HEADS.c.seq)
# Passed to `before_commit` in each transaction that changes the recipients of notifications.
CHANGED: Final = object()
_WISHES = select(task_notices).where(task_notices.c.task_id.in_(bindparam("ids", expanding=True)))


class NoticeRow(NamedTuple):
    """A notification; `body` is JSON, `state` is `waiting`, `sent` or `failed`. It has a `seq` once it is stored."""

    id: str
    project: str
    owner: str
    channel_id: str | None
    format: str
    target: str
    event: str
    event_id: int
    task_id: str | None
    body: str
    state: str
    tries: int
    next_at: float
    created_at: float
    seq: int = 0
    error: str | None = None
    sent_at: float | None = None


_ROWS = select(*(_at[name] for name in NoticeRow._fields))
_FIRST = _ROWS.where(_at.state == WAITING, _lane == bindparam("lane")).order_by(_at.seq).limit(1)
_NEW: Final = NoticeRow._fields[: NoticeRow._fields.index("seq")]
_INSERT = Bulk(insert(notifications), _NEW)


def insert_all(connection: Connection, rows: Sequence[NoticeRow]) -> None:
    """Store pending notifications."""
    _INSERT.run(connection, [row[: len(_NEW)] for row in rows])


def last_event_ids(connection: Connection, count: int) -> list[int]:
    """Return the ids of the newest events, oldest first: those that this transaction has appended."""
    query = select(events.c.id).order_by(events.c.id.desc()).limit(count)
    return [id_ for (id_,) in connection.execute(query)][::-1]


def lanes(connection: Connection) -> dict[str, float]:
    """Return when the first notification of each lane is due, in Unix time; empty lanes are omitted."""
    return {lane: next_at for lane, next_at in connection.execute(_DUE)}


def first_of(connection: Connection, lane: str) -> NoticeRow | None:
    """Return the next notification of a lane."""
    row = connection.execute(_FIRST, {"lane": lane}).first()
    return NoticeRow(*row) if row else None


def settle(connection: Connection, seq: int, values: Mapping[str, Any]) -> None:
    """Store the outcome of a try, unless the notification was dropped meanwhile."""
    connection.execute(update(notifications).where(_at.seq == seq, _at.state == WAITING).values(dict(values)))


def give_up_lane(connection: Connection, lane: str, before: float, error: str) -> None:
    """Fail the pending notifications of a lane that were created before a time."""
    where = (_at.state == WAITING, _lane == lane, _at.created_at <= before)
    connection.execute(update(notifications).where(*where).values(state="failed", error=error))


def give_up_channel(connection: Connection, channel_id: str, error: str) -> None:
    """Fail the pending notifications of a channel."""
    where = (_at.state == WAITING, _at.channel_id == channel_id)
    connection.execute(update(notifications).where(*where).values(state="failed", error=error))


def readdress(connection: Connection, channel_id: str, *, target: str, format_: str, now: float) -> None:
    """Redirect the pending notifications of a channel to its new address, due now."""
    where = (_at.state == WAITING, _at.channel_id == channel_id)
    connection.execute(update(notifications).where(*where).values(target=target, format=format_, next_at=now))


def page(
    connection: Connection,
    *,
    project: str,
    limit: int,
    before: int | None = None,
    filters: Mapping[str, Sequence[str] | None],
) -> list[NoticeRow]:
    """Return notifications, newest first.

    Args:
        filters: Column → allowed values; `None` for any.
    """
    query = _ROWS.where(_at.project == project).order_by(_at.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(_at.seq < before)
    for name, values in filters.items():
        if values is not None:
            query = query.where(_at[name].in_(list(values)))
    return [NoticeRow(*row) for row in connection.execute(query)]


def delete_before(connection: Connection, moment: float) -> None:
    """Delete settled notifications that are older than a time."""
    connection.execute(delete(notifications).where(_at.state != WAITING, _at.created_at < moment))


class ChannelRow(NamedTuple):
    """A channel; `events` are comma-separated, `secret` signs webhook requests."""

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


class SubscriptionRow(NamedTuple):
    """A subscription in a task's workflow file: to a channel, or else to `target`."""

    task_id: str
    number: int
    channel_id: str | None
    format: str
    target: str
    events: str


def changed(connection: Connection) -> None:
    """Invalidate cached channels."""
    note(connection, [CHANGED])


def insert_one(connection: Connection, values: Mapping[str, Any]) -> ChannelRow:
    """Store a channel; its name must be unique for its owner."""
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
    """Delete a channel and the subscriptions of tasks to it."""
    connection.execute(delete(notification_channels).where(notification_channels.c.id == channel_id))
    connection.execute(delete(task_notices).where(task_notices.c.channel_id == channel_id))
    changed(connection)


def add_wishes(connection: Connection, rows: Iterable[SubscriptionRow]) -> None:
    """Store subscriptions of tasks."""
    values = [row._asdict() for row in rows]
    if values:
        connection.execute(insert(task_notices), values)
        changed(connection)


def any_wish(connection: Connection) -> bool:
    """Return whether any task has a subscription."""
    return bool(connection.execute(select(exists().where(task_notices.c.number >= 0))).scalar())


def wishes_of(connection: Connection, task_ids: Sequence[str]) -> dict[str, list[SubscriptionRow]]:
    """Return the subscriptions of tasks, by task; tasks without any are omitted."""
    found: dict[str, list[SubscriptionRow]] = {}
    if task_ids:
        for row in connection.execute(_WISHES.order_by(task_notices.c.number), {"ids": list(task_ids)}):
            found.setdefault(row.task_id, []).append(SubscriptionRow(*row))
    return found


def delete_of_tasks(connection: Connection, task_ids: Sequence[str]) -> None:
    """Delete the subscriptions of deleted tasks."""
    connection.execute(delete(task_notices).where(task_notices.c.task_id.in_(list(task_ids))))
