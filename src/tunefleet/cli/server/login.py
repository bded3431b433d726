"""`tunefleet login`: save a server's URL and key for this user."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.text import Text

from tunefleet.cli.console import Json, print_json, say
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import connect
from tunefleet.client import Client
from tunefleet.client.connection import Connection, normalise, write_client_file
from tunefleet.errors import AuthError
from tunefleet.settings import ClientSettings, load


@examples("tunefleet login http://gpu-box:8000", "tunefleet login http://gpu-box:8000 < key.txt", "tunefleet login")
def login(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="Server URL; without it, print a login link.")
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Save a server's URL and key, or print a login link.

    The key is prompted for, or read from standard input: a command line is visible to all users of this machine.
    The link opens one browser session on the server that you are logged in to; it works once, within ten minutes.
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
