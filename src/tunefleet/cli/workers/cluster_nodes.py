"""`tunefleet worker --on`: a pool of permanent workers on nodes of Slurm or Ray."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tunefleet.cli.console import print_json, say
from tunefleet.errors import AuthError, InputError
from tunefleet.integrations.clusters import NodeRequest
from tunefleet.integrations.clusters.factory import Engine, open_cluster
from tunefleet.settings import ClientSettings, ClusterSettings, WorkerSettings, load
from tunefleet.spec.options.resources import parse_memory

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


def start(pool: Pool, worker: WorkerSettings, *, as_json: bool) -> None:
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


def end(pool: Pool) -> None:
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
