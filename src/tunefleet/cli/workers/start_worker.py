"""`tunefleet worker`: run tasks of a server on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunefleet.cli.console import Json
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import chosen_url
from tunefleet.cli.workers import cluster_nodes
from tunefleet.cli.workers.cluster_nodes import POOL, Pool
from tunefleet.integrations.clusters.factory import Engine
from tunefleet.settings import load_worker
from tunefleet.worker.__main__ import log_to_stderr
from tunefleet.worker.ephemeral import Once
from tunefleet.worker.main import run


@examples(
    "TUNEFLEET_WORKER_KEY=tf_… tunefleet worker --server http://gpu-box:8000",
    "tunefleet worker --results-dir /scratch/results --tags a100,lab",
    "tunefleet worker --drain",
    "tunefleet worker --on slurm --nodes 4 --gpus 8 --server http://login-node:8000",
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
    on: Annotated[
        Engine | None, typer.Option("--on", help="Start workers on nodes of this system instead, which last.")
    ] = None,
    pool: Annotated[str, typer.Option("--pool", metavar="NAME", help="With --on: the name of those workers.")] = POOL,
    nodes: Annotated[
        str, typer.Option("--nodes", metavar="N", help="With --on: how many, or for Ray 2:8, more while tasks wait.")
    ] = "1",
    cpus: Annotated[int, typer.Option("--cpus", min=0, help="With --on: cores of each.")] = 0,
    gpus: Annotated[int, typer.Option("--gpus", min=0, help="With --on: GPUs of each.")] = 0,
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help="With --on: memory of each, as 32Gi.")] = "",
    end: Annotated[
        bool, typer.Option("--end", help="With --on: end those workers; what they run goes on later.")
    ] = False,
    drain: Annotated[bool, typer.Option("--drain", help="Take nothing new; end when all is delivered.")] = False,
    as_json: Json = False,
) -> None:
    """Run tasks of a server on this machine.

    The key is read from TUNEFLEET_WORKER_KEY; an admin makes one with `tunefleet keys create NAME --role worker`. A
    machine that has joined (`tunefleet join`) needs no option and no variable.
    --on submits jobs to Slurm or Ray that each run a worker on a node, and returns; a node that is taken away saves
    first, and is asked for again.
    --once is how Slurm and Ray start the workers of a task with an engine: such a one waits for its task, and ends when
    that needs no nodes any more. On SIGUSR1, SIGTERM or Ctrl-C the task saves and goes back to the queue; then the
    worker ends with exit code 75.
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
    if on is not None:
        wanted = Pool(on, pool, nodes, cpus, gpus, memory, allow_code, tags or "")
        cluster_nodes.end(wanted) if end else cluster_nodes.start(wanted, settings, as_json=as_json)
        return
    log_to_stderr(settings.log_level, settings.log_format)
    if once is None and settings.nodes_job is None:
        run(settings, drain=drain)
        return
    chosen = Once.of(once, settings)
    if run(chosen.applied(settings), once=chosen):
        raise typer.Exit(ExitCode.MADE_WAY)
