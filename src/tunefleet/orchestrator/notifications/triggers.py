"""Look at the events of each transaction before it is committed, and store whom they are to be told to.

The one place: whatever appends an event, by whichever way, comes by here. While nobody wants to be told anything it
costs a look at a variable.
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
from tunefleet.db.repositories.notifications import CHANGED, WAITING, ChannelRow, NoticeRow, WishRow
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.notifications import facts
from tunefleet.orchestrator.notifications.facts import Case
from tunefleet.spec.options.notify import Occasion

log = logging.getLogger(__name__)

TOPIC: Final = "notifications"
# Woken when other people are to be told than before.
CHANNELS: Final = "channels"
"""Notified when there is something to deliver."""
# What follows from the end of another task, which was told: channels are spared it, unless a document names them.
_CASCADE: Final = frozenset({"upstream_failed"})


@dataclass(frozen=True, slots=True)
class _Known:
    """Who wants to be told."""

    channels: tuple[ChannelRow, ...]
    wishes: bool

    @property
    def nobody(self) -> bool:
        return not self.channels and not self.wishes


@dataclass(frozen=True, slots=True)
class _Place:
    """Where something goes, and under which name."""

    channel_id: str | None
    format: str
    target: str
    owner: str
    occasion: Occasion


class Watch:
    """Writes notifications for the events of a transaction; used by the writer thread alone.

    Args:
        base_url: Under which people reach the server; null if that is not known.
    """

    def __init__(self, base_url: str | None, *, shared_admin: bool = False) -> None:
        self._base_url = base_url.rstrip("/") if base_url else None
        self._shared_admin = shared_admin
        self._known: _Known | None = None
        self._forgotten = 0

    def forget(self) -> None:
        """Look for channels anew: another server may have changed them; safe in any thread."""
        self._forgotten += 1
        self._known = None

    def __call__(self, connection: Connection, noted: Sequence[object]) -> None:
        """Store what the events of a transaction are to be told to whom."""
        if any(thing is CHANGED for thing in noted):
            self._known = None
            wake(connection, CHANNELS)
        known = self._known or self._look(connection)
        if known.nobody:
            return
        try:
            new = self._notices(connection, known, [thing for thing in noted if isinstance(thing, Event)])
        except Exception:
            # A fault in what is said must not undo what happened.
            log.exception("Nobody is told of %d events.", len(noted))
            return
        if new:
            notifications.insert_all(connection, new)
            wake(connection, TOPIC)

    def _look(self, connection: Connection) -> _Known:
        forgotten = self._forgotten
        rows = [row for row in notifications.all_rows(connection) if row.enabled]
        admins = self._admins(connection, {row.project for row in rows if row.everyone})
        usable = tuple(row for row in rows if not row.everyone or (row.project, row.owner) in admins)
        known = _Known(usable, notifications.any_wish(connection))
        # What was read may be undone with this transaction.
        after_commit(connection, lambda: self._keep(known, forgotten))
        return known

    def _keep(self, known: _Known, forgotten: int) -> None:
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
        told = [(index, event) for index, event in enumerate(events) if facts.occasions(event)]
        if not told:
            return []
        ids = notifications.last_event_ids(connection, len(events))
        numbered = [(ids[index], event) for index, event in told]
        cases = facts.cases(connection, numbered)
        subjects = [case.subject for case in cases if case.subject is not None]
        wishes = notifications.wishes_of(connection, subjects) if known.wishes else {}
        return [
            self._notice(case, place)
            for case in cases
            for place in _places(known, case, wishes.get(case.subject or "", []))
        ]

    def _notice(self, case: Case, place: _Place) -> NoticeRow:
        id_ = new_id("ntf")
        told = case.told(id_, place.occasion, self._base_url)
        task_id = None if case.task is None else case.task.id
        return NoticeRow(
            id_, case.event.project, place.owner, place.channel_id, place.format, place.target, place.occasion,
            case.event_id, task_id, told.model_dump_json(), WAITING, 0, 0.0, case.event.at,
        )  # fmt: skip


def _places(known: _Known, case: Case, wishes: Sequence[WishRow]) -> Iterator[_Place]:
    """Yield where a case is told, each place once."""
    places: dict[str, _Place] = {}
    spared = case.event.data.get("reason") in _CASCADE
    for row in () if spared else known.channels:
        if row.project == case.event.project and (row.everyone or row.owner == case.owner):
            _add(places, row.events, case, channel_id=row.id, format=row.format, target=row.target, owner=row.owner)
    own = {row.id: row for row in known.channels if row.owner == case.owner and row.project == case.event.project}
    for wish in wishes:
        if wish.channel_id is None:
            _add(places, wish.events, case, channel_id=None, format=wish.format, target=wish.target, owner=case.owner)
        elif (found := own.get(wish.channel_id)) is not None:
            _add(
                places, wish.events, case,
                channel_id=found.id, format=found.format, target=found.target, owner=found.owner,
            )  # fmt: skip
    yield from places.values()


def _add(places: dict[str, _Place], wanted: str, case: Case, **where: Any) -> None:
    names = wanted.split(",")
    occasion = next((each for each in facts.occasions(case.event) if each in names), None)
    lane = where["channel_id"] or where["target"]
    if occasion is not None and lane not in places:
        places[lane] = _Place(**where, occasion=occasion)
