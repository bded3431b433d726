"""`tunefleet worker`: run tasks of a server on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunefleet.cli.exitcodes import ExitCode
from tunefleet.cli.lazy import examples
from tunefleet.cli.session import chosen_url
from tunefleet.settings import load_worker
from tunefleet.worker.__main__ import log_to_stderr
from tunefleet.worker.main import run
from tunefleet.worker.once import Once


@examples(
    "TUNEFLEET_WORKER_KEY=tf_… tunefleet worker --server http://gpu-box:8000",
    "tunefleet worker --results-dir /scratch/results --tags a100,lab",
    "tunefleet worker --drain",
)
def worker(
    *,
    server: Annotated[str | None, typer.Option("--server", metavar="URL", help="The server.")] = None,
    results_dir: Annotated[
        Path | None, typer.Option("--results-dir", metavar="FOLDER", help="Where its jobs and its state lie.")
    ] = None,
    worker_id: Annotated[
        str | None, typer.Option("--id", help="Its name; default: made once and kept in the results folder.")
    ] = None,
    tags: Annotated[str | None, typer.Option("--tags", help="Tags that a task may ask for, with commas.")] = None,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Let code that a document names run on this machine.")
    ] = False,
    once: Annotated[
        str | None,
        typer.Option("--once", metavar="TASK", help="Run this task alone, on a node of a cluster, and end."),
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="Take nothing new; end when all is delivered.")] = False,
) -> None:
    """Run tasks of a server on this machine.

    The key is read from TUNEFLEET_WORKER_KEY; an admin makes one with `tunefleet keys create NAME --role worker`. A
    machine that has joined (`tunefleet join`) needs no option and no variable.
    --once is how Slurm and Ray start workers: it waits for its task, and ends when that needs no nodes any more. On
    SIGUSR1, SIGTERM or Ctrl-C the task saves and goes back to the queue; then it ends with exit code 75.
    Ctrl-C lets running jobs save and end, and the next worker on the folder goes on with them; SIGTERM leaves them
    running, to be adopted.
    """
    settings = load_worker(
        server_url=server or chosen_url.get(),
        results_dir=results_dir,
        worker_id=worker_id,
        tags=tags,
        allow_code=allow_code or None,
    )
    log_to_stderr(settings.log_level, settings.log_format)
    if once is None:
        run(settings, drain=drain)
        return
    chosen = Once.of(once, settings)
    if run(chosen.applied(settings), once=chosen):
        raise typer.Exit(ExitCode.MADE_WAY)
