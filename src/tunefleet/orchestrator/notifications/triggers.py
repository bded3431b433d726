"""Create notifications from the events of each transaction, before it is committed.

Every appended event passes through here. Without channels and subscriptions the cost is one check of a variable.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tunefleet.db import Connection, after_commit, wake
from tunefleet.db.access import keys
from tunefleet.db.repositories import notifications
from tunefleet.db.repositories.events import Event
from tunefleet.db.repositories.notifications import CHANGED, WAITING, ChannelRow, NoticeRow, SubscriptionRow
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.notifications import facts
from tunefleet.orchestrator.notifications.facts import Case
from tunefleet.spec.options.notify import Occasion

log = logging.getLogger(__name__)

TOPIC: Final = "notifications"
# Published when channels or subscriptions have changed, so that other servers drop their cache.
CHANNELS: Final = "channels"
"""Notified when there is something to deliver."""
# Consequences of another task's failure, which was already reported: not sent to channels, only to subscriptions.
_CASCADE: Final = frozenset({"upstream_failed"})


@dataclass(frozen=True, slots=True)
class _Known:
    """Enabled channels, and whether there are any subscriptions."""

    channels: tuple[ChannelRow, ...]
    wishes: bool

    @property
    def is_empty(self) -> bool:
        return not self.channels and not self.wishes


@dataclass(frozen=True, slots=True)
class _Target:
    """A delivery target, and the occasion of the notification."""

    channel_id: str | None
    format: str
    target: str
    owner: str
    occasion: Occasion


class NotificationTriggers:
    """Writes notifications for the events of a transaction; used only by the writer thread.

    Args:
        base_url: Public URL of the server; None if not known.
    """

    def __init__(self, base_url: str | None, *, shared_admin: bool = False) -> None:
        self._base_url = base_url.rstrip("/") if base_url else None
        self._shared_admin = shared_admin
        self._known: _Known | None = None
        self._forgotten = 0

    def forget(self) -> None:
        """Invalidate the cache of channels, which another server may have changed; thread-safe."""
        self._forgotten += 1
        self._known = None

    def __call__(self, connection: Connection, noted: Sequence[object]) -> None:
        """Store the notifications for the events of a transaction."""
        if any(thing is CHANGED for thing in noted):
            self._known = None
            wake(connection, CHANNELS)
        known = self._known or self._load(connection)
        if known.is_empty:
            return
        try:
            new = self._notices(connection, known, [thing for thing in noted if isinstance(thing, Event)])
        except Exception:
            # An error here must not roll back the transaction.
            log.exception("Cannot create notifications for %d events.", len(noted))
            return
        if new:
            notifications.insert_all(connection, new)
            wake(connection, TOPIC)

    def _load(self, connection: Connection) -> _Known:
        forgotten = self._forgotten
        rows = [row for row in notifications.all_rows(connection) if row.enabled]
        admins = self._admins(connection, {row.project for row in rows if row.everyone})
        usable = tuple(row for row in rows if not row.everyone or (row.project, row.owner) in admins)
        known = _Known(usable, notifications.any_wish(connection))
        # Cached after the commit: a rollback would undo what was read.
        after_commit(connection, lambda: self._cache(known, forgotten))
        return known

    def _cache(self, known: _Known, forgotten: int) -> None:
        if self._forgotten == forgotten:
            self._known = known

    def _admins(self, connection: Connection, projects: set[str]) -> set[tuple[str, str]]:
        found = {
            (project, row.owner)
            for project in projects
            for row in keys.all_rows(connection, project=project)
            if row.role == "admin" and row.revoked_at is None
        }
        return found | ({(project, "shared-token") for project in projects} if self._shared_admin else set())

    def _notices(self, connection: Connection, known: _Known, events: Sequence[Event]) -> list[NoticeRow]:
        relevant = [(index, event) for index, event in enumerate(events) if facts.occasions(event)]
        if not relevant:
            return []
        ids = notifications.last_event_ids(connection, len(events))
        numbered = [(ids[index], event) for index, event in relevant]
        cases = facts.cases(connection, numbered)
        subjects = [case.subject for case in cases if case.subject is not None]
        wishes = notifications.wishes_of(connection, subjects) if known.wishes else {}
        return [
            self._notice(case, target)
            for case in cases
            for target in _targets(known, case, wishes.get(case.subject or "", []))
        ]

    def _notice(self, case: Case, target: _Target) -> NoticeRow:
        id_ = new_id("ntf")
        payload = case.payload(id_, target.occasion, self._base_url)
        task_id = None if case.task is None else case.task.id
        return NoticeRow(
            id_, case.event.project, target.owner, target.channel_id, target.format, target.target, target.occasion,
            case.event_id, task_id, payload.model_dump_json(), WAITING, 0, 0.0, case.event.at,
        )  # fmt: skip


def _targets(known: _Known, case: Case, wishes: Sequence[SubscriptionRow]) -> Iterator[_Target]:
    """Yield the targets of a case, each once."""
    targets: dict[str, _Target] = {}
    is_consequence = case.event.data.get("reason") in _CASCADE
    for row in () if is_consequence else known.channels:
        if row.project == case.event.project and (row.everyone or row.owner == case.owner):
            _add(targets, row.events, case, channel_id=row.id, format=row.format, target=row.target, owner=row.owner)
    own = {row.id: row for row in known.channels if row.owner == case.owner and row.project == case.event.project}
    for wish in wishes:
        if wish.channel_id is None:
            _add(targets, wish.events, case, channel_id=None, format=wish.format, target=wish.target, owner=case.owner)
        elif (found := own.get(wish.channel_id)) is not None:
            _add(
                targets, wish.events, case,
                channel_id=found.id, format=found.format, target=found.target, owner=found.owner,
            )  # fmt: skip
    yield from targets.values()


def _add(targets: dict[str, _Target], events: str, case: Case, **where: Any) -> None:
    names = events.split(",")
    occasion = next((each for each in facts.occasions(case.event) if each in names), None)
    lane = where["channel_id"] or where["target"]
    if occasion is not None and lane not in targets:
        targets[lane] = _Target(**where, occasion=occasion)
