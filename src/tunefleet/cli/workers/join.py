"""`tunefleet join`: join this machine to a server as a worker."""

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
    url: Annotated[str, typer.Argument(metavar="URL", help="Server URL.")],
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Single-use token of an invitation.")],
    *,
    results_dir: Annotated[
        Path | None,
        typer.Option(
            "--results-dir", metavar="FOLDER", help="Folder of the jobs; default: `worker` in TUNEFLEET_HOME."
        ),
    ] = None,
    worker_id: Annotated[str | None, typer.Option("--id", help="Worker name; default: generated once.")] = None,
    tags: Annotated[str | None, typer.Option("--tags", help="Comma-separated tags that tasks can require.")] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option("--ca-file", metavar="FILE", help="Additional trusted certificates (PEM)."),
    ] = None,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Allow custom code of workflow files on this machine.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Join even if this machine has joined another server.")
    ] = False,
    no_start: Annotated[bool, typer.Option("--no-start", help="Join without starting the worker.")] = False,
    as_json: Json = False,
) -> None:
    """Join this machine to a server as a worker.

    An admin gets the complete command from `tunefleet workers invite`. The token is exchanged for this machine's own
    key, stored in worker.env in TUNEFLEET_HOME; later `tunefleet worker` is enough. If the server's reply is lost,
    repeat the command. The machine opens all connections itself and needs no inbound access.
    """
    settings = load(ProcessSettings, ca_file=ca_file)
    folder = (results_dir or settings.home_dir / "worker").expanduser().absolute()
    values = {"TUNEFLEET_RESULTS_DIR": str(folder)}
    values |= {"TUNEFLEET_WORKER_ID": worker_id} if worker_id else {}
    values |= {"TUNEFLEET_WORKER_TAGS": tags} if tags else {}
    values |= {"TUNEFLEET_CA_FILE": str(settings.ca_file.expanduser().absolute())} if settings.ca_file else {}
    values |= {"TUNEFLEET_ALLOW_CODE": "true"} if allow_code else {}
    trust.use(settings.ca_file)
    joined = enrollment.join(settings, url, token, values, replace=replace)
    if as_json:
        print_json({"url": joined.url, "file": str(joined.file), **joined.reply.model_dump()})
    else:
        say(Text.assemble("Joined ", (joined.url, "head"), f". Key saved in {joined.file}."))
    if no_start:
        if not as_json:
            say("Start it with `tunefleet worker` or as a service: docs/how-to/join-a-worker.md.")
        return
    # Imported here: --no-start needs no worker code.
    from tunefleet.worker.__main__ import log_to_stderr
    from tunefleet.worker.main import run

    found = load_worker()
    # The worker runs until it is stopped: show the message now.
    sys.stdout.flush()
    log_to_stderr(found.log_level)
    run(found)
