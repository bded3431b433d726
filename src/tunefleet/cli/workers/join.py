"""`tunefleet join`: make this machine a worker of a server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tunefleet.cli.console import Json, print_json, say
from tunefleet.cli.lazy_group import examples
from tunefleet.client import trust
from tunefleet.settings import ProcessSettings, load, load_worker
from tunefleet.worker.machine import enrollment


@examples(
    "tunefleet join https://tunefleet.example.org tfj_…",
    "tunefleet join https://tunefleet.lab tfj_… --ca-file lab-ca.pem --results-dir /scratch/tunefleet",
    "tunefleet join https://tunefleet.example.org tfj_… --no-start",
)
def join(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server.")],
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Of an invitation; it is good once.")],
    *,
    results_dir: Annotated[
        Path | None,
        typer.Option("--results-dir", metavar="FOLDER", help="Where jobs lie; default: `worker` in TUNEFLEET_HOME."),
    ] = None,
    worker_id: Annotated[str | None, typer.Option("--id", help="The worker's name; default: made once.")] = None,
    tags: Annotated[str | None, typer.Option("--tags", help="Tags that a task may ask for, with commas.")] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option("--ca-file", metavar="FILE", help="Certificates (PEM) to trust beside the system's."),
    ] = None,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Let code that a document names run on this machine.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Also if this machine has joined another server.")] = False,
    no_start: Annotated[bool, typer.Option("--no-start", help="Only join; start the worker later.")] = False,
    as_json: Json = False,
) -> None:
    """Make this machine a worker of a server, and run it.

    An admin makes the whole command with `tunefleet workers invite`. The token is exchanged for a key of this machine's
    own, kept in worker.env in TUNEFLEET_HOME; from then on `tunefleet worker` is enough. If the server's answer is
    lost, repeat the command. The machine opens all connections itself: nothing needs to reach it.
    """
    settings = load(ProcessSettings, ca_file=ca_file)
    folder = (results_dir or settings.home_dir / "worker").expanduser().absolute()
    wishes = {"RESULTS_DIR": str(folder)}
    wishes |= {"WORKER_ID": worker_id} if worker_id else {}
    wishes |= {"WORKER_TAGS": tags} if tags else {}
    wishes |= {"TUNEFLEET_CA_FILE": str(settings.ca_file.expanduser().absolute())} if settings.ca_file else {}
    wishes |= {"TUNEFLEET_ALLOW_CODE": "true"} if allow_code else {}
    trust.use(settings.ca_file)
    joined = enrollment.join(settings, url, token, wishes, replace=replace)
    if as_json:
        print_json({"url": joined.url, "file": str(joined.file), **joined.reply.model_dump()})
    else:
        say(Text.assemble("Joined ", (joined.url, "head"), f". Its key is kept in {joined.file}."))
    if no_start:
        if not as_json:
            say("Start it with `tunefleet worker`, or let a service do so: docs/how-to/join-a-worker.md.")
        return
    from tunefleet.worker.__main__ import log_to_stderr
    from tunefleet.worker.main import run

    found = load_worker()
    sys.stdout.flush()
    log_to_stderr(found.log_level)
    run(found)
