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
class Submitter:
    """The submitter of a workflow file."""

    project: str
    owner: str
    mails: bool


def faults(
    connection: Connection, submitter: Submitter, requests: Iterable[tuple[TaskNode, Sequence[NotifySpec]]]
) -> list[Fault]:
    """Return errors for targets that cannot be notified, with their place in the workflow file."""
    found = [fault for node, notify in requests for fault in _faults(connection, submitter, node, notify)]
    # Stages that share a `notify` block would repeat the same error.
    return sorted(dict.fromkeys(found), key=lambda fault: (fault.line, fault.column))


def _faults(
    connection: Connection, submitter: Submitter, node: TaskNode, notify: Sequence[NotifySpec]
) -> Iterator[Fault]:
    for number, wish in enumerate(notify):
        at = f"notify.{number}.to"
        if is_address(wish.to):
            if wish.to.lower().startswith(MAILTO) and not submitter.mails:
                yield node.fault(
                    at, "this server has no mail server configured", "ask its operator to set TUNEFLEET_SMTP_URL"
                )
        elif notifications.by_name(connection, wish.to, project=submitter.project, owner=submitter.owner) is None:
            yield node.fault(at, f"you have no channel {wish.to}", "`tunefleet notify ls` lists your channels")


def store(connection: Connection, requests: Iterable[tuple[TaskRow, Sequence[NotifySpec]]]) -> None:
    """Store the subscriptions of tasks."""
    notifications.add_wishes(
        connection, [wish for row, notify in requests for wish in _wishes(connection, row, notify)]
    )


def _wishes(connection: Connection, row: TaskRow, notify: Sequence[NotifySpec]) -> Iterator[SubscriptionRow]:
    for number, wish in enumerate(notify):
        events = ",".join(dict.fromkeys(wish.on))
        if is_address(wish.to):
            yield SubscriptionRow(row.id, number, None, wish.format or format_of(wish.to), wish.to, events)
            continue
        channel = notifications.by_name(connection, wish.to, project=row.project, owner=row.owner)
        if channel is not None:
            yield SubscriptionRow(row.id, number, channel.id, channel.format, channel.target, events)
