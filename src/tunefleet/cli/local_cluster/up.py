"""`tunefleet up`: a server and a worker on this machine, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from tunefleet.cli.console import err, print_json, say
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.local_cluster.supervisor import LocalFleet

# How long workers may take to register; slow imports are told apart from a worker that cannot.
_WORKERS_S = 30.0


@examples("tunefleet up", "tunefleet up --workers 2", "tunefleet up --data ./fleet --port 8010")
def up(
    data: Annotated[Path | None, typer.Option(help="Folder of the database, the files and the results.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; 0.0.0.0 lets others in, with a key.")] = None,
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=1, help="How many workers.")] = 1,
    keep_jobs: Annotated[bool, typer.Option("--keep-jobs", help="At the end, leave running trainings alive.")] = False,
    adopt_files: Annotated[
        bool,
        typer.Option(
            "--adopt-files",
            help="Once: take the files in the folder as this database's, and keep what it does not know.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Once it is up, print where as one JSON object, and nothing else.")
    ] = False,
) -> None:
    """Start a server and a worker on this machine, and keep them running until Ctrl-C.

    With --workers there are several, each with a folder, a log and an equal part of the cores of its own: enough to see
    work spread. They share memory and GPUs. A worker on another machine is joined with `tunefleet worker`.

    At the end, a running training saves a checkpoint if that is quick and ends; its task goes on from the newest
    checkpoint at the next `tunefleet up` on the same folder. With --keep-jobs it lives on and is adopted then.
    """
    fleet = LocalFleet(data, host=host, port=port, workers=workers, adopt_files=adopt_files)
    with ending(fleet) as asked:
        fleet.start()
        present = fleet.await_workers(_WORKERS_S, asked)
        if as_json:
            print_json(_described(fleet))
        else:
            _greet(fleet, workers, present)
        # Whoever started this reads it in a pipe, now.
        sys.stdout.flush()
        asked.wait()
        if not as_json:
            say("Stopping; Ctrl-C again ends at once.", style="dim")
        fleet.stop(keep_jobs=keep_jobs)
    if not as_json:
        say("Stopped.")


def _described(fleet: LocalFleet) -> dict[str, Any]:
    return {
        "url": fleet.url,
        "login_url": fleet.login_link(),
        "data": str(fleet.data),
        "logs": str(fleet.logs),
        "pid": os.getpid(),
    }


def _greet(fleet: LocalFleet, workers: int, present: Sequence[str]) -> None:
    say(f"Tunefleet is up at {fleet.url}" + (f" with {workers} workers" if len(present) == workers > 1 else ""))
    if len(present) < workers:
        here = f"{len(present)} of {workers} workers" if present else "No worker"
        verb = "have" if len(present) > 1 else "has"
        say(
            f"{here} {verb} registered after {_WORKERS_S:.0f} s; the logs say why, `tunefleet workers` who.",
            style="warn",
        )
    say(f"  log in   {fleet.login_link()}   (works once)")
    say(f"  data     {fleet.data}")
    say(f"  logs     {fleet.logs}")
    say("  submit   tunefleet submit FILE --follow")
    say("Ctrl-C stops it.", style="dim")


@contextmanager
def ending(fleet: LocalFleet | None) -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets; the second one ends everything at once.

    Args:
        fleet: What is ended, too; null if nothing was started.
    """
    asked = threading.Event()

    def ask(number: int, _: FrameType | None) -> None:
        if asked.is_set():
            if fleet is not None:
                fleet.kill()
                err().print("Ended at once; trainings that run are adopted by the next `tunefleet up`.")
            raise SystemExit(128 + number)
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
