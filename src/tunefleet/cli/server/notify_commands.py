"""`tunefleet notify`: who is told what of tasks, and what they were told."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, cut, print_json, say, table
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.id_lookup import one_task
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.options import Yes, complete_channel, complete_task, confirm, connect
from tunefleet.errors import InputError
from tunefleet.schemas.notify import NotificationView
from tunefleet.spec.options.notify import OCCASIONS, Occasion

app = typer.Typer(
    help="Be told when tasks end, fail or stall: webhook, Slack, Discord, e-mail.", invoke_without_command=True
)

Channel = Annotated[
    str,
    typer.Argument(metavar="CHANNEL", help="Name of one of your channels, or its id.", autocompletion=complete_channel),
]
_STYLES = {"sent": "good", "failed": "bad", "waiting": "warn"}


@app.callback()
def notify(context: typer.Context, *, as_json: Json = False) -> None:
    """Be told when tasks end, fail or stall: webhook, Slack, Discord, e-mail."""
    if context.invoked_subcommand is None:
        ls(as_json=as_json)


@examples(
    "tunefleet notify add team https://hooks.slack.com/services/…",
    "tunefleet notify add me mailto:ada@example.org --on failed,stalled,worker_lost",
    "tunefleet notify add ci https://ci.example.org/hook",
)
def add_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What you, and documents, call it.")],
    to: Annotated[str, typer.Argument(metavar="TO", help="A web address, or mailto: and an e-mail address.")],
    *,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="WHAT,…",
            help=f"What is told: {', '.join(OCCASIONS)}. Default: everything.",
            autocompletion=lambda: list(OCCASIONS),
        ),
    ] = None,
    format: Annotated[
        Literal["webhook", "slack", "discord", "email"] | None,
        typer.Option("--format", help="How; default: what the address takes. Mattermost takes slack."),
    ] = None,
    everyone: Annotated[
        bool, typer.Option("--everyone", help="Tell of the tasks of all users; takes an admin key.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Add a channel: from now on it is told of your tasks."""
    with connect() as client:
        made = client.notifications.create_channel(name, to, on=_occasions(on), format=format, everyone=everyone)
    if as_json:
        print_json(made)
        return
    say(f"Added {made.name}. `tunefleet notify test {made.name}` shows whether it works.")
    if made.secret is not None:
        say(made.secret)
        say("This secret signs what goes there. This is the only time it is shown.", style="dim")


@examples("tunefleet notify ls")
def ls(*, as_json: Json = False) -> None:
    """List your channels; an admin sees everybody's."""
    with connect() as client:
        found = client.notifications.channels(limit=1000).items
    if as_json:
        print_json(found)
        return
    if not found:
        say("Nobody is told anything. `tunefleet notify add` adds a channel.")
        return
    listing = table("name", "owner", "format", "to", "told of", "tasks", "state", wide="told of")
    for channel in found:
        listing.add_row(
            Text(channel.name, style="id"),
            channel.owner,
            channel.format,
            channel.to,
            cut("everything" if set(channel.on) == set(OCCASIONS) else ", ".join(channel.on)),
            "everyone's" if channel.everyone else "own",
            Text("on", style="good") if channel.enabled else Text("off", style="dim"),
        )
    say(listing)


@examples("tunefleet notify test team")
def try_(channel: Channel, *, as_json: Json = False) -> None:
    """Send a test to a channel, and say how it went."""
    with connect() as client:
        reply = client.notifications.test_channel(channel)
    if as_json:
        print_json(reply)
    else:
        say(f"{channel} took it." if reply.sent else f"{channel} did not get it: {reply.error}")
    if not reply.sent:
        raise typer.Exit(ExitCode.FAILED)


@examples("tunefleet notify rm team")
def rm(channel: Channel, *, yes: Yes = False, as_json: Json = False) -> None:
    """Remove a channel; what waits for it is given up."""
    confirm(f"Remove the channel {channel}?", yes=yes)
    with connect() as client:
        client.notifications.remove_channel(channel)
    if as_json:
        print_json({"removed": [channel]})
    else:
        say(f"Removed {channel}.")


@examples("tunefleet notify log", "tunefleet notify log --task task-3f9c --json")
def log(
    *,
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="TASK", help="Only of this task.", autocompletion=complete_task),
    ] = None,
    channel: Annotated[
        str | None,
        typer.Option("--channel", metavar="CHANNEL", help="Only to this channel.", autocompletion=complete_channel),
    ] = None,
    state: Annotated[
        Literal["waiting", "sent", "failed"] | None, typer.Option("--state", help="Only in this state.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="How many at most.")] = 30,
    as_json: Json = False,
) -> None:
    """Show what was told to whom, newest first, and why something was not."""
    with connect() as client:
        task_id = client.tasks.get(one_task(client, task)).id if task is not None else None
        found = client.notifications.list(limit=limit, task_id=task_id, channel=channel, state=state).items
    if as_json:
        print_json(found)
        return
    if not found:
        filtered = any(given is not None for given in (task, channel, state))
        say("Nothing matches." if filtered else "Nobody has been told anything yet; tests are not listed.")
        return
    listing = table("when", "what", "channel", "to", "state", "tries", "error", right=("tries",), wide="error")
    for told in found:
        listing.add_row(
            f"{formatting.age(told.created_at)} ago",
            told.title,
            Text(told.channel, style="id") if told.channel else Text(_from(told), style="dim"),
            told.to,
            Text(told.state, style=_STYLES[told.state]),
            str(told.tries),
            cut(told.error or ""),
        )
    say(listing)


def _from(told: NotificationView) -> str:
    """Say of what goes to no channel that is there why it goes there."""
    return "document" if told.channel_id is None else "(removed)"


def _occasions(text: str | None) -> tuple[Occasion, ...]:
    if text is None:
        return OCCASIONS
    asked = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [part for part in asked if part not in OCCASIONS]
    if unknown or not asked:
        wrong = f"{unknown[0]!r} is nothing that is told." if unknown else "--on is empty."
        raise InputError(wrong, hint=f"There are: {', '.join(OCCASIONS)}.")
    return tuple(each for each in OCCASIONS if each in asked)


for _function, _name in ((add_, "add"), (ls, "ls"), (try_, "test"), (rm, "rm"), (log, "log")):
    add(app, _function, _name)
