"""`tunefleet notify`: notification channels and the delivery log."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, cut, print_json, say, table
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.options import Yes, complete_channel, complete_task, confirm, connect, one_task
from tunefleet.errors import InputError
from tunefleet.schemas.notify import NotificationView
from tunefleet.spec.options.notify import OCCASIONS, Occasion

app = typer.Typer(
    help="Notifications when runs end, fail or stall: webhook, Slack, Discord, e-mail.", invoke_without_command=True
)

Channel = Annotated[
    str,
    typer.Argument(metavar="CHANNEL", help="Name or id of a channel.", autocompletion=complete_channel),
]
_STYLES = {"sent": "good", "failed": "bad", "waiting": "warn"}


@app.callback()
def notify(context: typer.Context, *, as_json: Json = False) -> None:
    """Notifications when runs end, fail or stall: webhook, Slack, Discord, e-mail."""
    if context.invoked_subcommand is None:
        ls(as_json=as_json)


@examples(
    "tunefleet notify add team https://hooks.slack.com/services/…",
    "tunefleet notify add me mailto:ada@example.org --on failed,stalled,worker_lost",
    "tunefleet notify add ci https://ci.example.org/hook",
)
def add_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Channel name, as used in workflow files.")],
    to: Annotated[str, typer.Argument(metavar="TO", help="A URL, or mailto: and an e-mail address.")],
    *,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="EVENT,…",
            help=f"Events to send: {', '.join(OCCASIONS)}. Default: all.",
            autocompletion=lambda: list(OCCASIONS),
        ),
    ] = None,
    format: Annotated[
        Literal["webhook", "slack", "discord", "email"] | None,
        typer.Option("--format", help="Message format; default: from the URL. Use slack for Mattermost."),
    ] = None,
    everyone: Annotated[
        bool, typer.Option("--everyone", help="Notify about the runs of all users; needs an admin key.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Add a channel for notifications about your runs."""
    with connect() as client:
        made = client.notifications.create_channel(name, to, on=_occasions(on), format=format, everyone=everyone)
    if as_json:
        print_json(made)
        return
    say(f"Added {made.name}. Test it with `tunefleet notify test {made.name}`.")
    if made.secret is not None:
        say(made.secret)
        say("This secret signs the requests. Copy it now; it is not shown again.", style="dim")


@examples("tunefleet notify ls")
def ls(*, as_json: Json = False) -> None:
    """List your channels; an admin sees all."""
    with connect() as client:
        found = client.notifications.channels(limit=1000).items
    if as_json:
        print_json(found)
        return
    if not found:
        say("No notification channels yet. Add one with `tunefleet notify add`.")
        return
    listing = table("name", "owner", "format", "to", "events", "tasks", "state", wide="events")
    for channel in found:
        listing.add_row(
            Text(channel.name, style="id"),
            channel.owner,
            channel.format,
            channel.to,
            cut("all" if set(channel.on) == set(OCCASIONS) else ", ".join(channel.on)),
            "everyone's" if channel.everyone else "own",
            Text("on", style="good") if channel.enabled else Text("off", style="dim"),
        )
    say(listing)


@examples("tunefleet notify test team")
def try_(channel: Channel, *, as_json: Json = False) -> None:
    """Send a test notification and print the result."""
    with connect() as client:
        reply = client.notifications.test_channel(channel)
    if as_json:
        print_json(reply)
    else:
        say(f"Sent to {channel}." if reply.sent else f"Delivery to {channel} failed: {reply.error}")
    if not reply.sent:
        raise typer.Exit(ExitCode.FAILED)


@examples("tunefleet notify rm team")
def rm(channel: Channel, *, yes: Yes = False, as_json: Json = False) -> None:
    """Remove a channel; its pending notifications are dropped."""
    confirm(f"Remove channel {channel}?", yes=yes)
    with connect() as client:
        client.notifications.remove_channel(channel)
    if as_json:
        print_json({"removed": [channel]})
    else:
        say(f"Removed {channel}.")


@examples("tunefleet notify log", "tunefleet notify log --run task-3f9c --json")
def log(
    *,
    task: Annotated[
        str | None,
        typer.Option("--run", "--task", metavar="RUN", help="Filter by run.", autocompletion=complete_task),
    ] = None,
    channel: Annotated[
        str | None,
        typer.Option("--channel", metavar="CHANNEL", help="Filter by channel.", autocompletion=complete_channel),
    ] = None,
    state: Annotated[
        Literal["waiting", "sent", "failed"] | None, typer.Option("--state", help="Filter by state.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=1000, help="Maximum number of entries.")
    ] = 30,
    as_json: Json = False,
) -> None:
    """Show sent and failed notifications, newest first."""
    with connect() as client:
        task_id = client.tasks.get(one_task(client, task)).id if task is not None else None
        found = client.notifications.list(limit=limit, task_id=task_id, channel=channel, state=state).items
    if as_json:
        print_json(found)
        return
    if not found:
        filtered = any(given is not None for given in (task, channel, state))
        say("No notification matches." if filtered else "No notifications yet; tests are not listed.")
        return
    listing = table("time", "event", "channel", "to", "state", "attempts", "error", right=("attempts",), wide="error")
    for notification in found:
        listing.add_row(
            f"{formatting.age(notification.created_at)} ago",
            notification.title,
            Text(notification.channel, style="id") if notification.channel else Text(_from(notification), style="dim"),
            notification.to,
            Text(notification.state, style=_STYLES[notification.state]),
            str(notification.tries),
            cut(notification.error or ""),
        )
    say(listing)


def _from(notification: NotificationView) -> str:
    """Return the source of a notification without an existing channel."""
    return "workflow" if notification.channel_id is None else "(removed)"


def _occasions(text: str | None) -> tuple[Occasion, ...]:
    if text is None:
        return OCCASIONS
    names = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [part for part in names if part not in OCCASIONS]
    if unknown or not names:
        wrong = f"{unknown[0]!r} is not an event." if unknown else "--on is empty."
        raise InputError(wrong, hint=f"Valid events: {', '.join(OCCASIONS)}.")
    # In the defined order, whatever the order on the command line.
    return tuple(each for each in OCCASIONS if each in names)


for _function, _name in ((add_, "add"), (ls, "ls"), (try_, "test"), (rm, "rm"), (log, "log")):
    add(app, _function, _name)
