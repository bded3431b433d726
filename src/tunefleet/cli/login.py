"""`tunefleet login`: save a server's URL and key for this user."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.text import Text

from tunefleet.cli.console import Json, print_json, say
from tunefleet.cli.lazy import examples
from tunefleet.client import Client
from tunefleet.client.connection import Connection, normalise, write_client_file
from tunefleet.errors import AuthError
from tunefleet.settings import ClientSettings, load


@examples("tunefleet login http://gpu-box:8000", "tunefleet login http://gpu-box:8000 < key.txt")
def login(url: Annotated[str, typer.Argument(metavar="URL", help="The server.")], *, as_json: Json = False) -> None:
    """Save the URL and key of a server for this user.

    The key is asked for, or read from standard input: on the command line everybody on this machine could see it.
    """
    base = normalise(url)
    secret = typer.prompt(f"API key for {base}", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.read()
    secret = secret.strip()
    if not secret:
        raise AuthError("No key was given.", hint="An admin makes one with `tunefleet keys create NAME`.")
    with Client(base, secret, patience_s=2.0) as client:
        info = client.info()
    if not info.authenticated:
        raise AuthError(f"{base} does not know this key.", hint="It may be revoked, or of another server.")
    file = load(ClientSettings).client_file
    write_client_file(file, Connection(base, secret))
    if as_json:
        print_json(info)
    else:
        say(Text.assemble("Logged in to ", (base, "head"), f" as {info.owner} ({info.role}). Saved in {file}."))
