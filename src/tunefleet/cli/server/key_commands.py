"""`tunefleet keys`: API keys of the server."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, print_json, say, table
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.options import Yes, confirm, connect

app = typer.Typer(help="Create, list and revoke API keys.", invoke_without_command=True)


@app.callback()
def keys(context: typer.Context, *, as_json: Json = False) -> None:
    """Create, list and revoke API keys."""
    if context.invoked_subcommand is None:
        ls(as_json=as_json)


@examples("tunefleet keys ls")
def ls(*, as_json: Json = False) -> None:
    """List keys without their secrets."""
    with connect() as client:
        found = client.keys.list(limit=1000).items
    if as_json:
        print_json(found)
        return
    listing = table("key", "name", "role", "owner", "project", "created", "last used", "state")
    for key in found:
        listing.add_row(
            Text(key.id, style="id"),
            key.name,
            key.role,
            key.owner,
            key.project,
            f"{formatting.age(key.created_at)} ago",
            f"{formatting.age(key.last_used_at)} ago" if key.last_used_at else "never",
            Text("revoked", style="bad") if key.revoked_at else Text("active", style="good"),
        )
    say(listing)


@examples("tunefleet keys create laptop", "tunefleet keys create gpu-box --role worker")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for the key.")],
    *,
    role: Annotated[
        Literal["admin", "member", "viewer", "worker"],
        typer.Option(
            "--role", help="admin: everything. member: own tasks, reads all. viewer: read-only. worker: runs tasks."
        ),
    ] = "member",
    owner: Annotated[str | None, typer.Option("--owner", help="Owner of the key's tasks; default: NAME.")] = None,
    project: Annotated[
        str | None, typer.Option("--project", metavar="PROJECT", help="Project of the key; default: yours.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a key; its secret is shown only once."""
    with connect() as client:
        made = client.keys.create(name, role, owner=owner, project=project)
    if as_json:
        print_json(made)
        return
    say(made.secret)
    say(f"Copy it now; it is not shown again. Key {made.id}, role {made.role}, project {made.project}.", style="dim")


@examples("tunefleet keys revoke key-7d21")
def revoke(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Id of a key.")], *, yes: Yes = False, as_json: Json = False
) -> None:
    """Revoke a key; requests with it are rejected from now on."""
    confirm(f"Revoke key {key}?", yes=yes)
    with connect() as client:
        client.keys.revoke(key)
    if as_json:
        print_json({"revoked": [key]})
    else:
        say(f"Revoked {key}.")


for _function, _name in ((ls, "ls"), (create, "create"), (revoke, "revoke")):
    add(app, _function, _name)
