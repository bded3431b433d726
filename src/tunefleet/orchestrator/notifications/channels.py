"""Notification channels of users (create, list, change, test, remove), and the subscriptions of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast
from urllib.parse import urlsplit

from tunefleet.db import Connection, wake
from tunefleet.db.repositories import notifications
from tunefleet.db.repositories.notifications import ChannelRow, SubscriptionRow
from tunefleet.db.rows import TaskRow
from tunefleet.errors import ConflictError, Fault, InputError, MachineError, NotFoundError
from tunefleet.orchestrator.access.permissions import Actor, may_administer, may_change, may_read, may_submit
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.notifications import channel_formats
from tunefleet.orchestrator.notifications.senders import Sender, mail_server
from tunefleet.orchestrator.notifications.triggers import TOPIC
from tunefleet.orchestrator.views import to_datetime
from tunefleet.schemas.notify import (
    ChannelChange,
    ChannelCreate,
    ChannelCreated,
    ChannelTestReply,
    ChannelView,
    WebhookPayload,
)
from tunefleet.spec import TaskNode
from tunefleet.spec.options.notify import (
    MAILTO,
    OCCASIONS,
    Format,
    NotifySpec,
    Occasion,
    address_fault,
    format_of,
    is_address,
)

# Per owner.
MAX_CHANNELS: Final = 50
_LIST: Final = "`tunefleet notify ls` lists them."


async def create(core: ServerContext, actor: Actor, body: ChannelCreate) -> ChannelCreated:
    """Create a channel; its signing secret is returned only here.

    Raises:
        InputError: If the address or the secret is not valid.
        ConflictError: If the name is taken, or the owner has too many channels.
        ForbiddenError: If it is for everyone's tasks and the actor is not an admin.
    """
    may_submit(actor)
    if body.everyone:
        may_administer(actor)
    format_ = body.format or format_of(body.to)
    _check(core, body.to, format_)
    secret = _secret(body.secret, format_)
    values = {
        "id": new_id("chn"), "project": actor.project, "owner": actor.owner, "name": body.name, "format": format_,
        "target": body.to, "secret": secret, "events": _joined(body.on), "everyone": int(body.everyone),
        "enabled": 1, "created_at": core.clock.wall(),
    }  # fmt: skip
    row = await core.write(partial(_insert, values=values))
    return ChannelCreated(**channel_view(row).model_dump(), secret=row.secret)


async def list_(core: ServerContext, actor: Actor) -> list[ChannelView]:
    """Return the actor's channels, oldest first; an admin sees those of all owners."""
    may_read(actor)
    rows = await core.read(notifications.all_rows)
    return [channel_view(row) for row in rows if _visible(actor, row)]


async def get(core: ServerContext, actor: Actor, channel: str) -> ChannelView:
    """Return a channel by id, or by name if it belongs to the actor."""
    may_read(actor)
    return channel_view(await core.read(partial(find, actor=actor, channel=channel)))


async def change(core: ServerContext, actor: Actor, channel: str, body: ChannelChange) -> ChannelView:
    """Change a channel; pending notifications go to its new address.

    Raises:
        InputError: If the address is not valid.
        ForbiddenError: If it becomes a channel for everyone's tasks and the actor is not an admin.
    """
    may_submit(actor)
    if body.everyone:
        may_administer(actor)
    return channel_view(await core.write(partial(_change, core=core, actor=actor, channel=channel, body=body)))


async def remove(core: ServerContext, actor: Actor, channel: str) -> None:
    """Remove a channel, and give up its pending notifications."""
    may_submit(actor)

    def operation(connection: Connection) -> None:
        row = _mine(connection, actor, channel)
        notifications.give_up_channel(connection, row.id, "The channel was removed.")
        notifications.remove(connection, row.id)

    await core.write(operation)


async def test(core: ServerContext, actor: Actor, channel: str) -> ChannelTestReply:
    """Send a test message once, without retries, and return the result."""
    may_submit(actor)
    row = await core.read(partial(_mine, actor=actor, channel=channel))
    now = core.clock.wall()
    wanted = _split(row.events)
    text = f"This is a test of channel {row.name}. Its events: {', '.join(wanted).replace('_', ' ')}."
    message = WebhookPayload(
        id=new_id("ntf"),
        event=wanted[0],
        at=to_datetime(now),
        title="This is a test",
        text=text,
        command="tunefleet notify ls",  # a test has no task to show
    )
    sender = Sender(core.settings)
    try:
        outcome = await sender.send(message, cast(Format, row.format), row.target, row.secret, now)
    finally:
        sender.close()
    return ChannelTestReply(sent=outcome.error is None, error=outcome.error)


def channel_view(row: ChannelRow) -> ChannelView:
    """Show a channel."""
    return ChannelView(
        id=row.id,
        name=row.name,
        owner=row.owner,
        to=shown(row.target),
        format=cast(Format, row.format),
        on=_split(row.events),
        signed=row.secret is not None,
        everyone=bool(row.everyone),
        enabled=bool(row.enabled),
        created_at=to_datetime(row.created_at),
    )


def _insert(connection: Connection, *, values: Mapping[str, Any]) -> ChannelRow:
    name, owner, project = values["name"], values["owner"], values["project"]
    if notifications.by_name(connection, name, project=project, owner=owner) is not None:
        raise ConflictError(f"Channel {name} already exists.", hint=f"Choose another name; {_LIST}")
    if len([row for row in notifications.all_rows(connection) if row.owner == owner]) >= MAX_CHANNELS:
        raise ConflictError(f"{owner} has {MAX_CHANNELS} channels, the maximum.", hint="Remove one.")
    return notifications.insert_one(connection, values)


def _change(
    connection: Connection, *, core: ServerContext, actor: Actor, channel: str, body: ChannelChange
) -> ChannelRow:
    row = _mine(connection, actor, channel)
    target = body.to or row.target
    format_: Format = body.format or (format_of(target) if body.to is not None else cast(Format, row.format))
    _check(core, target, format_)
    # A new address keeps its secret, so that receivers need not be reconfigured.
    secret = row.secret if format_ == "webhook" and row.secret is not None else _secret(None, format_)
    values: dict[str, Any] = {"target": target, "format": format_, "secret": secret}
    values |= {} if body.on is None else {"events": _joined(body.on)}
    values |= {name: int(value) for name in ("everyone", "enabled") if (value := getattr(body, name)) is not None}
    notifications.change(connection, row.id, values)
    # Pending notifications of a disabled channel would otherwise be sent when it is enabled again.
    if body.enabled is False:
        notifications.give_up_channel(connection, row.id, "The channel was disabled.")
    elif (target, format_) != (row.target, row.format):
        notifications.readdress(connection, row.id, target=target, format_=format_, now=core.clock.wall())
        wake(connection, TOPIC)
    changed = notifications.by_id(connection, row.id)
    assert changed is not None, "read in the same transaction"
    return changed


def shown(target: str) -> str:
    """Return an address for display, without secrets: of a webhook URL only scheme and host."""
    if target.lower().startswith(MAILTO):
        return target
    parts = urlsplit(target)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/…"


def find(connection: Connection, actor: Actor, channel: str) -> ChannelRow:
    """Return a channel that the actor may see."""
    named = notifications.by_name(connection, channel, project=actor.project, owner=actor.owner)
    row = named or notifications.by_id(connection, channel)
    if row is None or not _visible(actor, row):
        raise NotFoundError(f"Channel {channel} not found.", hint=_LIST)
    return row


def _mine(connection: Connection, actor: Actor, channel: str) -> ChannelRow:
    row = find(connection, actor, channel)
    may_change(actor, row.owner, row.id)
    return row


def _visible(actor: Actor, row: ChannelRow) -> bool:
    return row.project == actor.project and (actor.role == "admin" or row.owner == actor.owner)


def _check(core: ServerContext, target: str, format_: Format) -> None:
    problem = address_fault(target, format_)
    if problem is not None:
        raise InputError(f"The URL {problem}.")
    if format_ == "email":
        try:
            mail_server(core.settings)
        except MachineError as error:
            raise InputError(error.message, hint=error.hint) from error


def _secret(given: str | None, format_: Format) -> str | None:
    if given is not None and format_ != "webhook":
        raise InputError(f"Messages in the format {format_} are not signed.", hint="Omit the secret.")
    if given is not None and not channel_formats.is_signing_secret(given):
        raise InputError("The secret is not valid.", hint="Use `whsec_` and 24 or more bytes in base64.")
    return (given or channel_formats.new_secret()) if format_ == "webhook" else None


def _joined(on: Sequence[Occasion]) -> str:
    return ",".join(each for each in OCCASIONS if each in on)


def _split(text: str) -> tuple[Occasion, ...]:
    return cast(tuple[Occasion, ...], tuple(text.split(",")))


@dataclass(frozen=True, slots=True)
class Submitter:
    """The submitter of a workflow file."""

    project: str
    owner: str
    mails: bool


def subscription_faults(
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


def store_subscriptions(connection: Connection, requests: Iterable[tuple[TaskRow, Sequence[NotifySpec]]]) -> None:
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
