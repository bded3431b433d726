"""`tunefleet worker`: run a worker on this machine."""

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
from tunefleet.worker.ephemeral import EphemeralWorkerOptions
from tunefleet.worker.main import run


@examples(
    "TUNEFLEET_WORKER_KEY=tf_… tunefleet worker --server http://gpu-box:8000",
    "tunefleet worker --results-dir /scratch/results --tags a100,lab",
    "tunefleet worker --drain",
    "tunefleet worker --on slurm --nodes 4 --gpus 8 --server http://login-node:8000",
)
def worker(
    *,
    server: Annotated[str | None, typer.Option("--server", metavar="URL", help="Server URL.")] = None,
    results_dir: Annotated[
        Path | None, typer.Option("--results-dir", metavar="FOLDER", help="Folder of its jobs and state.")
    ] = None,
    worker_id: Annotated[
        str | None, typer.Option("--id", help="Worker name; default: generated once and stored in the results folder.")
    ] = None,
    tags: Annotated[str | None, typer.Option("--tags", help="Comma-separated tags that tasks can require.")] = None,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Allow custom code of workflow files on this machine.")
    ] = False,
    once: Annotated[
        str | None,
        typer.Option("--once", metavar="TASK", help="Run only this task on a cluster node, then exit."),
    ] = None,
    on: Annotated[
        Engine | None, typer.Option("--on", help="Start permanent workers on nodes of this cluster instead.")
    ] = None,
    pool: Annotated[str, typer.Option("--pool", metavar="NAME", help="With --on: name of the pool.")] = POOL,
    nodes: Annotated[
        str,
        typer.Option(
            "--nodes", metavar="N", help="With --on: number of workers; on Ray also 2:8, more while tasks wait."
        ),
    ] = "1",
    cpus: Annotated[int, typer.Option("--cpus", min=0, help="With --on: cores per worker.")] = 0,
    gpus: Annotated[int, typer.Option("--gpus", min=0, help="With --on: GPUs per worker.")] = 0,
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="With --on: memory per worker, such as 32Gi.")
    ] = "",
    end: Annotated[
        bool, typer.Option("--end", help="With --on: end these workers; their tasks continue later.")
    ] = False,
    drain: Annotated[
        bool, typer.Option("--drain", help="Accept no new tasks; exit when all results are delivered.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a worker on this machine.

    The key is read from TUNEFLEET_WORKER_KEY; an admin creates one with `tunefleet keys create NAME --role worker`. A
    machine that has joined (`tunefleet join`) needs no options or variables.
    --on submits jobs to Slurm or Ray that each run a worker on a node, and returns; a preempted node saves first, and
    is requested again.
    --once is used by Slurm and Ray to start the workers of a task with an engine: such a worker waits for its task, and
    exits when the task needs no more nodes. On SIGUSR1, SIGTERM or Ctrl-C the task saves and returns to the queue; the
    worker then exits with code 75.
    On Ctrl-C running jobs save and end, and the next worker on the folder resumes them; on SIGTERM they keep running,
    and the next worker adopts them.
    """
    settings = load_worker(
        server_url=server or chosen_url.get(),
        results_dir=results_dir,
        worker_id=worker_id,
        tags=tags,
        # None keeps the setting of the environment.
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
    chosen = EphemeralWorkerOptions.of(once, settings)
    if run(chosen.applied(settings), once=chosen):
        raise typer.Exit(ExitCode.MADE_WAY)
