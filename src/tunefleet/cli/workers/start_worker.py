"""`tunefleet worker` and `join`: run a worker here, join a server, or start workers on Slurm or Ray (`--on`)."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.text import Text

from tunefleet.cli.console import Json, print_json, say
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import chosen_url
from tunefleet.client import trust
from tunefleet.errors import AuthError, InputError
from tunefleet.integrations.clusters import Engine, NodeRequest, open_cluster
from tunefleet.settings import ClientSettings, ClusterSettings, ProcessSettings, WorkerSettings, load, load_worker
from tunefleet.spec.options.resources import parse_memory
from tunefleet.worker.__main__ import log_to_stderr
from tunefleet.worker.ephemeral import EphemeralWorkerOptions
from tunefleet.worker.machine import enrollment
from tunefleet.worker.main import run

POOL: Final = "tunefleet-workers"


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of workers.

    Args:
        nodes: Number of workers, each on its own node; `2:8` keeps two and adds up to six while tasks wait.
        cpus: Cores per worker; 0 uses the cluster's default.
        memory: Memory per worker, such as `32Gi`; empty uses the cluster's default.
    """

    engine: Engine
    name: str = POOL
    nodes: str = "1"
    cpus: int = 0
    gpus: int = 0
    memory: str = ""
    allow_code: bool = False
    tags: str = ""

    @property
    def min_nodes(self) -> int:
        """Minimum number of workers."""
        return self._count(0)

    @property
    def max_nodes(self) -> int:
        """Maximum number of workers."""
        return self._count(-1)

    def _count(self, which: int) -> int:
        parts = self.nodes.split(":")
        if len(parts) > 2 or not all(part.strip().isdecimal() for part in parts) or int(parts[0]) > int(parts[-1]):
            raise InputError(f"--nodes {self.nodes} is not a number of nodes.", hint="Use 4, or 2:8 with --on ray.")
        if int(parts[-1]) == 0:
            raise InputError(f"--nodes {self.nodes} requests no worker.", hint="Use 1 or more; --end ends a pool.")
        return int(parts[which])


def start_pool(pool: Pool, worker: WorkerSettings, *, as_json: bool) -> None:
    """Submit the jobs of a pool, and print them.

    Raises:
        TunefleetError: If the cluster does not respond, or rejects a job.
    """
    if worker.key is None:
        raise AuthError(
            "The workers have no key.",
            hint="Set TUNEFLEET_WORKER_KEY; an admin creates one with `tunefleet keys create NAME --role worker`.",
        )
    settings = load(ClusterSettings)
    cluster = open_cluster(pool.engine, settings)
    asks = _requests(pool, settings, worker)
    found = [(ask.name, cluster.submit(ask)) for ask in asks]
    if as_json:
        print_json({"jobs": [{"name": name, "job": job} for name, job in found]})
        return
    for name, job in found:
        say(f"Submitted {pool.engine} job {job} ({name}).")
    end_command = f"tunefleet worker --on {pool.engine} --pool {pool.name} --nodes {pool.nodes} --end"
    say(f"Workers appear in `tunefleet workers` once they have nodes. End them with `{end_command}`.")


def end_pool(pool: Pool) -> None:
    """End the workers of a pool; their tasks save and continue elsewhere.

    Raises:
        TunefleetError: If the cluster does not respond.
    """
    names = _names(pool)
    cluster = open_cluster(pool.engine, load(ClusterSettings))
    known = [name for name, seen in cluster.look(names).items() if seen.stage != "ended"]
    for name in known:
        cluster.cancel(name)
    say(f"Ending {len(known)} of {len(names)} jobs of pool {pool.name}.")


def _requests(pool: Pool, settings: ClusterSettings, worker: WorkerSettings) -> Sequence[NodeRequest]:
    names = _names(pool)
    made = [_ask(name, pool, settings, worker) for name in names]
    if pool.engine == "slurm":
        if pool.max_nodes > pool.min_nodes:
            raise InputError(
                f"--nodes {pool.nodes} is only supported on Ray.",
                hint="Use one number on Slurm. For nodes per task, set `engine: slurm` in the task.",
            )
        return made
    from tunefleet.integrations.clusters.ray import lasting

    if pool.max_nodes == pool.min_nodes:
        return [lasting(made[0])]
    url = _url(settings, worker)
    return [lasting(made[0], server=url, key=_reading_key(url))]


def _names(pool: Pool) -> list[str]:
    """Return the job names: on Slurm one per node, so that each node starts and ends independently."""
    return [pool.name] if pool.engine == "ray" else [f"{pool.name}-{number}" for number in range(pool.min_nodes)]


def _ask(name: str, pool: Pool, settings: ClusterSettings, worker: WorkerSettings) -> NodeRequest:
    assert worker.key is not None, "checked by the caller"
    # In the environment: a command line with a key would be visible to other users.
    environment = {"TUNEFLEET_NODES_JOB": name, "TUNEFLEET_WORKER_KEY": worker.key.get_secret_value()}
    if pool.engine == "slurm" or settings.nodes_dir is not None:
        environment["TUNEFLEET_NODES_DIR"] = str(settings.nodes_folder)
    if pool.tags:
        environment["TUNEFLEET_WORKER_TAGS"] = pool.tags
    if pool.allow_code:
        environment["TUNEFLEET_ALLOW_CODE"] = "true"
    single = pool.engine == "slurm"
    return NodeRequest(
        name,
        1 if single else pool.min_nodes,
        1 if single else pool.max_nodes,
        (*shlex.split(settings.nodes_command), "worker", "--server", _url(settings, worker)),
        environment,
        cpu=pool.cpus,
        memory_bytes=parse_memory(pool.memory) if pool.memory else 0,
        gpu_count=pool.gpus,
    )


def _url(settings: ClusterSettings, worker: WorkerSettings) -> str:
    """Return the server's URL as seen from the nodes."""
    return settings.nodes_url or worker.server_url


def _reading_key(url: str) -> str:
    """Return the key for the autoscaler on Ray: it reads the queue length, which a worker's key may not."""
    client = load(ClientSettings)
    key = client.key
    if key is None:
        raise AuthError(
            f"The queue length of {url} cannot be read: a worker's key has no permission.",
            hint="Set TUNEFLEET_KEY to a viewer's key (`tunefleet keys create NAME --role viewer`), or use one number.",
        )
    return key.get_secret_value()


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
        Path | None, typer.Option("--results-dir", metavar="FOLDER", help="Folder for jobs and state.")
    ] = None,
    worker_id: Annotated[
        str | None, typer.Option("--id", help="Worker name; default: generated once and stored in the results folder.")
    ] = None,
    tags: Annotated[str | None, typer.Option("--tags", help="Comma-separated tags that tasks can require.")] = None,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Allow custom code from workflow files to run on this machine.")
    ] = False,
    once: Annotated[
        str | None,
        typer.Option("--once", metavar="TASK", help="Run only this task on a cluster node, then exit."),
    ] = None,
    on: Annotated[
        Engine | None, typer.Option("--on", help="Start permanent workers on the nodes of this cluster instead.")
    ] = None,
    pool: Annotated[str, typer.Option("--pool", metavar="NAME", help="With --on: name of the pool.")] = POOL,
    nodes: Annotated[
        str,
        typer.Option(
            "--nodes",
            metavar="N",
            help="With --on: number of workers; on Ray also a range such as 2:8, scaled with the queue.",
        ),
    ] = "1",
    cpus: Annotated[int, typer.Option("--cpus", min=0, help="With --on: cores per worker.")] = 0,
    gpus: Annotated[int, typer.Option("--gpus", min=0, help="With --on: GPUs per worker.")] = 0,
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="With --on: memory per worker, such as 32Gi.")
    ] = "",
    end: Annotated[
        bool, typer.Option("--end", help="With --on: stop these workers; their tasks continue later.")
    ] = False,
    drain: Annotated[
        bool, typer.Option("--drain", help="Accept no new tasks, and exit once all results are delivered.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a worker on this machine.

    The key is read from TUNEFLEET_WORKER_KEY; an admin creates one with `tunefleet keys create NAME --role worker`.
    On a machine that has joined (`tunefleet join`), no options or variables are needed.

    On Ctrl-C, running jobs save and stop, and the next worker on the same folder resumes them. On SIGTERM they keep
    running, and the next worker adopts them.

    With --on, the command submits Slurm or Ray jobs that each run a worker on a node, and returns. A worker on a
    preempted node saves first and is requested again.

    Slurm and Ray use --once to start the workers of a task with an engine. Such a worker exits when the task needs
    no more nodes. On SIGUSR1, SIGTERM or Ctrl-C, the task saves and returns to the queue, and the worker exits with
    code 75.
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
        end_pool(wanted) if end else start_pool(wanted, settings, as_json=as_json)
        return
    log_to_stderr(settings.log_level, settings.log_format)
    if once is None and settings.nodes_job is None:
        run(settings, drain=drain)
        return
    chosen = EphemeralWorkerOptions.of(once, settings)
    if run(chosen.applied(settings), once=chosen):
        raise typer.Exit(ExitCode.MADE_WAY)


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
        typer.Option("--results-dir", metavar="FOLDER", help="Folder for jobs; default: `worker` in TUNEFLEET_HOME."),
    ] = None,
    worker_id: Annotated[str | None, typer.Option("--id", help="Worker name; default: generated once.")] = None,
    tags: Annotated[str | None, typer.Option("--tags", help="Comma-separated tags that tasks can require.")] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option("--ca-file", metavar="FILE", help="Additional trusted certificates (PEM)."),
    ] = None,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Allow custom code from workflow files to run on this machine.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Join even if this machine has joined another server.")
    ] = False,
    no_start: Annotated[bool, typer.Option("--no-start", help="Join without starting the worker.")] = False,
    as_json: Json = False,
) -> None:
    """Join this machine to a server as a worker.

    An admin gets the complete command from `tunefleet workers invite`. The token is exchanged for a key of this
    machine, stored in worker.env in TUNEFLEET_HOME; from then on, `tunefleet worker` needs no options. If the
    connection breaks, run the command again. The worker makes outbound connections only.
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
