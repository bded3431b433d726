"""`tunefleet up`: run a server and a worker on this machine until Ctrl-C."""

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

from tunefleet.cli.console import err, print_json, progress, say
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.local_cluster.supervisor import LocalFleet

# Time for workers to register: imports may be slow on a cold disk.
_WORKERS_S = 30.0


@examples("tunefleet up", "tunefleet up --workers 2", "tunefleet up --data ./fleet --port 8010")
def up(
    data: Annotated[Path | None, typer.Option(help="Folder for the database, files and results.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; 0.0.0.0 allows remote access, which requires a key.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=1, help="Number of workers.")] = 1,
    keep_jobs: Annotated[bool, typer.Option("--keep-jobs", help="Leave jobs running on exit.")] = False,
    adopt_files: Annotated[
        bool,
        typer.Option(
            "--adopt-files",
            help="Use once, to adopt the data folder for this database; unknown files are kept.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="When ready, print URL and paths as one JSON object.")
    ] = False,
) -> None:
    """Start a server and a worker on this machine, and keep them running until Ctrl-C.

    With --workers N, each worker gets its own folder and log and an equal share of the CPU cores; memory and GPUs
    are shared. Start a worker on another machine with `tunefleet worker`.

    On Ctrl-C, active runs save a checkpoint if that is quick, then stop. The next `tunefleet up` on the same folder
    resumes them from their newest checkpoint. With --keep-jobs they keep running, and the next `tunefleet up`
    adopts them.
    """
    fleet = LocalFleet(data, host=host, port=port, workers=workers, adopt_files=adopt_files)
    with stop_on_signal(fleet) as stop_requested:
        with progress("Starting the server …"):
            fleet.start()
        with progress("Waiting for the worker …"):
            present = fleet.await_workers(_WORKERS_S, stop_requested)
        if as_json:
            print_json(_as_json(fleet))
        else:
            _print_started(fleet, workers, present)
        # A script may wait for the JSON in a pipe.
        sys.stdout.flush()
        stop_requested.wait()
        if not as_json:
            say("Stopping. Press Ctrl-C again to stop immediately.", style="dim")
        fleet.stop(keep_jobs=keep_jobs)
    if not as_json:
        say("Stopped.")


def _as_json(fleet: LocalFleet) -> dict[str, Any]:
    return {
        "url": fleet.url,
        "login_url": fleet.login_link(),
        "data": str(fleet.data),
        "logs": str(fleet.logs),
        "pid": os.getpid(),
    }


def _print_started(fleet: LocalFleet, workers: int, present: Sequence[str]) -> None:
    say(f"Tunefleet is up at {fleet.url}" + (f" with {workers} workers" if len(present) == workers > 1 else ""))
    if len(present) < workers:
        count = f"{len(present)} of {workers} workers" if present else "No worker"
        verb = "have" if len(present) > 1 else "has"
        say(
            f"{count} {verb} registered after {_WORKERS_S:.0f} s. See the logs and `tunefleet workers`.",
            style="warn",
        )
    if fleet.has_page:
        say(f"  log in   {fleet.login_link()}   (works once, within 10 minutes)")
    else:
        say("  page     not built; run `make ui` in the clone, then `tunefleet login` for a link", style="warn")
    say(f"  data     {fleet.data}")
    say(f"  logs     {fleet.logs}")
    say("  submit   tunefleet submit FILE --follow")
    say("Press Ctrl-C to stop.", style="dim")


@contextmanager
def stop_on_signal(fleet: LocalFleet | None) -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets; the second signal exits immediately.

    Args:
        fleet: Fleet to kill on the second signal; `None` if none was started.
    """
    stop_requested = threading.Event()

    def on_signal(number: int, _: FrameType | None) -> None:
        if stop_requested.is_set():
            if fleet is not None:
                fleet.kill()
                err().print("Stopped immediately; the next `tunefleet up` adopts running jobs.")
            # The shell's convention for an end by a signal.
            raise SystemExit(128 + number)
        stop_requested.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop_requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
