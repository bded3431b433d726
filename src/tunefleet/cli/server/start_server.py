"""`tunefleet server`: run a server in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunefleet.cli.lazy_group import examples


@examples(
    "tunefleet server",
    "tunefleet server --host 0.0.0.0 --data /srv/tunefleet",
    "TUNEFLEET_DATABASE_URL=postgresql://… tunefleet server",
)
def server(
    *,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FOLDER", help="Folder of the database, files and keys.")
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on; 0.0.0.0 allows remote access.")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port to listen on.")] = None,
    adopt_files: Annotated[
        bool,
        typer.Option(
            "--adopt-files", help="Once: adopt the files in the folder for this database, and keep unknown ones."
        ),
    ] = False,
) -> None:
    """Run a server on this machine.

    It runs until Ctrl-C or SIGTERM. Everything else is set by TUNEFLEET_… variables or a .env file. `tunefleet up`
    starts a server and a worker together.
    """
    from tunefleet.api.process import main

    given = [("--data", data), ("--host", host), ("--port", port)]
    arguments = [f"{name}={value}" for name, value in given if value is not None]
    if code := main([*arguments, *(["--adopt-files"] if adopt_files else [])]):
        raise typer.Exit(code)
