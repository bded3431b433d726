"""`tunefleet keys` and `login`: API keys of the server, and the one that is saved for this user."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, print_json, say, table
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.options import Yes, confirm, connect
from tunefleet.client import Client
from tunefleet.client.connection import Connection, normalise, write_client_file
from tunefleet.errors import AuthError
from tunefleet.settings import ClientSettings, load

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
            key.role if key.endpoint is None else f"{key.role} {key.endpoint}",
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
        Literal["admin", "member", "viewer", "worker", "endpoint"],
        typer.Option(
            "--role",
            help="admin: full access. member: own runs, reads all. viewer: read-only. worker: runs tasks. "
            "endpoint: calls endpoints.",
        ),
    ] = "member",
    owner: Annotated[str | None, typer.Option("--owner", help="Owner of the key's runs; default: NAME.")] = None,
    project: Annotated[
        str | None, typer.Option("--project", metavar="PROJECT", help="Project of the key; default: yours.")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option("--endpoint", metavar="NAME", help="With role endpoint: the only endpoint that it may call."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a key; its secret is shown only once."""
    with connect() as client:
        made = client.keys.create(name, role, owner=owner, project=project, endpoint=endpoint)
    if as_json:
        print_json(made)
        return
    say(made.secret)
    say(f"Copy it now; it is not shown again. Key {made.id}, role {made.role}, project {made.project}.", style="dim")


@examples("tunefleet keys revoke key-7d21")
def revoke(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Id of a key.")], *, yes: Yes = False, as_json: Json = False
) -> None:
    """Revoke a key; requests with it are rejected immediately."""
    confirm(f"Revoke key {key}?", yes=yes)
    with connect() as client:
        client.keys.revoke(key)
    if as_json:
        print_json({"revoked": [key]})
    else:
        say(f"Revoked {key}.")


for _function, _name in ((ls, "ls"), (create, "create"), (revoke, "revoke")):
    add(app, _function, _name)


@examples("tunefleet login http://gpu-box:8000", "tunefleet login http://gpu-box:8000 < key.txt", "tunefleet login")
def login(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="Server URL; without it, print a login link.")
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Save a server's URL and key, or print a login link.

    Prompts for the key, or reads it from standard input, because other users of this machine can see command lines.

    Without a URL, prints a link that logs your browser in to the current server. It works once and expires after
    ten minutes.
    """
    if url is None:
        _print_link(as_json=as_json)
    else:
        _save(normalise(url), as_json=as_json)


def _print_link(*, as_json: bool) -> None:
    with connect() as client:
        code = client.login_code()
    if as_json:
        print_json(code)
    else:
        say(code.url)


def _save(base: str, *, as_json: bool) -> None:
    secret = typer.prompt(f"API key for {base}", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.read()
    secret = secret.strip()
    if not secret:
        raise AuthError("No key was given.", hint="An admin creates one with `tunefleet keys create NAME`.")
    # Checked before it is saved: a wrong key must not replace a working one.
    with Client(base, secret, patience_s=2.0) as client:
        info = client.info()
    if not info.authenticated:
        raise AuthError(f"{base} rejects this key.", hint="It may be revoked, or belong to another server.")
    file = load(ClientSettings).client_file
    write_client_file(file, Connection(base, secret))
    if as_json:
        print_json(info)
    else:
        say(Text.assemble("Logged in to ", (base, "head"), f" as {info.owner} ({info.role}). Saved in {file}."))
