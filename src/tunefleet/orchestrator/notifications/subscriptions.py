"""Notification subscriptions of tasks: validated and stored at submission."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tunefleet.db import Connection
from tunefleet.db.repositories import notifications
from tunefleet.db.repositories.notifications import SubscriptionRow
from tunefleet.db.rows import TaskRow
from tunefleet.errors import Fault
from tunefleet.spec import TaskNode
from tunefleet.spec.options.notify import MAILTO, NotifySpec, format_of, is_address


@dataclass(frozen=True, slots=True)
class Who:
    """The submitter of a workflow file."""

    project: str
    owner: str
    mails: bool


def faults(connection: Connection, who: Who, told: Iterable[tuple[TaskNode, Sequence[NotifySpec]]]) -> list[Fault]:
    """Return errors for targets that cannot be notified, with their place in the workflow file."""
    found = [fault for node, notify in told for fault in _faults(connection, who, node, notify)]
    # Stages that share a `notify` block would repeat the same error.
    return sorted(dict.fromkeys(found), key=lambda fault: (fault.line, fault.column))


def _faults(connection: Connection, who: Who, node: TaskNode, notify: Sequence[NotifySpec]) -> Iterator[Fault]:
    for number, wish in enumerate(notify):
        at = f"notify.{number}.to"
        if is_address(wish.to):
            if wish.to.lower().startswith(MAILTO) and not who.mails:
                yield node.fault(
                    at, "this server has no mail server configured", "ask its operator to set TUNEFLEET_SMTP_URL"
                )
        elif notifications.by_name(connection, wish.to, project=who.project, owner=who.owner) is None:
            yield node.fault(at, f"you have no channel {wish.to}", "`tunefleet notify ls` lists your channels")


def store(connection: Connection, told: Iterable[tuple[TaskRow, Sequence[NotifySpec]]]) -> None:
    """Store the subscriptions of tasks."""
    notifications.add_wishes(connection, [wish for row, notify in told for wish in _wishes(connection, row, notify)])


def _wishes(connection: Connection, row: TaskRow, notify: Sequence[NotifySpec]) -> Iterator[SubscriptionRow]:
    for number, wish in enumerate(notify):
        events = ",".join(dict.fromkeys(wish.on))
        if is_address(wish.to):
            yield SubscriptionRow(row.id, number, None, wish.format or format_of(wish.to), wish.to, events)
            continue
        channel = notifications.by_name(connection, wish.to, project=row.project, owner=row.owner)
        if channel is not None:
            yield SubscriptionRow(row.id, number, channel.id, channel.format, channel.target, events)
