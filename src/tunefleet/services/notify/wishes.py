"""What the documents of tasks want to be told to whom: checked and stored at the submit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tunefleet.errors import Fault
from tunefleet.spec.notify import MAILTO, NotifySpec, format_of, is_address
from tunefleet.store import Connection, channels
from tunefleet.store.channels import WishRow
from tunefleet.store.rows import TaskRow


@dataclass(frozen=True, slots=True)
class Who:
    """Who submits a document.

    Args:
        project: Where.
        owner: Whose its tasks are.
        mails: Whether the server sends mail.
    """

    project: str
    owner: str
    mails: bool


def faults(connection: Connection, who: Who, notify: Sequence[NotifySpec]) -> list[Fault]:
    """Find whom a document names and nobody can tell."""
    found = []
    for number, wish in enumerate(notify):
        at = f"spec.notify.{number}.to"
        if is_address(wish.to):
            if wish.to.lower().startswith(MAILTO) and not who.mails:
                found.append(Fault(at, "this server sends no mail", hint="its operator sets TUNEFLEET_SMTP_URL"))
        elif channels.by_name(connection, wish.to, project=who.project, owner=who.owner) is None:
            found.append(Fault(at, f"you have no channel {wish.to}", hint="see `tunefleet notify ls`"))
    return found


def store(connection: Connection, told: Iterable[tuple[TaskRow, Sequence[NotifySpec]]]) -> None:
    """Store what the documents of tasks want.

    Args:
        connection: Of the operation.
        told: Tasks that were just stored, with their `notify` blocks.
    """
    channels.add_wishes(connection, [wish for row, notify in told for wish in _wishes(connection, row, notify)])


def _wishes(connection: Connection, row: TaskRow, notify: Sequence[NotifySpec]) -> Iterator[WishRow]:
    for number, wish in enumerate(notify):
        events = ",".join(dict.fromkeys(wish.on))
        if is_address(wish.to):
            yield WishRow(row.id, number, None, wish.format or format_of(wish.to), wish.to, events)
            continue
        channel = channels.by_name(connection, wish.to, project=row.project, owner=row.owner)
        if channel is not None:
            yield WishRow(row.id, number, channel.id, channel.format, channel.target, events)
