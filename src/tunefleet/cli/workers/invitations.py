"""`tunefleet workers invite`: let machines join, each with a token that is good once."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, print_json, say, table
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.options import Yes, confirm, connect, parse_duration

_STYLES = {"open": "good", "used": "", "expired": "dim", "withdrawn": "bad"}


@examples("tunefleet workers invite", "tunefleet workers invite gpu-3 --tags a100,lab --expires 1d")
def invite(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The worker's name; default: the machine chooses.")
    ] = None,
    *,
    tags: Annotated[
        str | None, typer.Option("--tags", help="The worker's tags, with commas; default: the machine chooses.")
    ] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Whose machine it is; default: NAME, or you.")] = None,
    expires: Annotated[str, typer.Option("--expires", metavar="TIME", help="How long it is good.")] = "1h",
    as_json: Json = False,
) -> None:
    """Make a join token and print the command to type on the new machine; it is good once."""
    wanted = None if tags is None else [tag.strip() for tag in tags.split(",") if tag.strip()]
    with connect() as client:
        made = client.workers.invite(name, tags=wanted, owner=owner, expires_s=parse_duration(expires))
    if as_json:
        print_json(made)
        return
    typer.echo(made.command)  # as it is: a terminal would break it at its width, and it is to be copied
    server = made.command.split()[2]
    say(f'Install first, if it is not there: pip install "$(curl -fsS {server}/install)"', style="dim")
    say(f"Good once, until {made.expires_at:%Y-%m-%d %H:%M} UTC. This is the only time it is shown.", style="dim")


@examples("tunefleet workers invitations")
def invitations(*, as_json: Json = False) -> None:
    """List invitations, without their tokens."""
    with connect() as client:
        found = client.workers.invitations(limit=1000).items
    if as_json:
        print_json(found)
        return
    listing = table("invitation", "state", "worker", "tags", "owner", "made by", "until", "key")
    for each in found:
        listing.add_row(
            Text(each.id, style="id"),
            Text(each.state, style=_STYLES[each.state]),
            each.worker_id or "any",
            "any" if each.tags is None else ", ".join(each.tags) or "none",
            each.owner,
            f"{each.created_by}, {formatting.age(each.created_at)} ago",
            f"{each.expires_at:%Y-%m-%d %H:%M}",
            each.key_id or "–",
        )
    say(listing)


@examples("tunefleet workers withdraw inv-7d21")
def withdraw(
    invitation: Annotated[str, typer.Argument(metavar="INVITATION", help="Id of an invitation.")],
    *,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Withdraw an invitation that nobody has used."""
    confirm(f"Withdraw the invitation {invitation}?", yes=yes)
    with connect() as client:
        client.workers.withdraw(invitation)
    if as_json:
        print_json({"withdrawn": [invitation]})
    else:
        say(f"Withdrew {invitation}.")


def attach(app: typer.Typer) -> None:
    """Add the commands to the group of workers."""
    for name, function in (("invite", invite), ("invitations", invitations), ("withdraw", withdraw)):
        add(app, function, name)
