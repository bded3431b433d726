"""`tunefleet worker --on`: workers on nodes of Slurm or Ray, for as long as somebody wants them there."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tunefleet.cli.console import print_json, say
from tunefleet.errors import AuthError, InputError
from tunefleet.integrations.clusters import Ask
from tunefleet.integrations.clusters.factory import Engine, open_cluster
from tunefleet.settings import ClientSettings, ClusterSettings, WorkerSettings, load
from tunefleet.spec.options.resources import parse_memory

POOL: Final = "tunefleet-workers"


@dataclass(frozen=True, slots=True)
class Pool:
    """The workers that are wanted.

    Args:
        nodes: How many workers, each on a node of its own; `2:8` keeps two and adds up to six while tasks wait.
        cpus: Cores of each; 0 leaves it to the cluster.
        memory: Main memory of each, such as `32Gi`; empty leaves it to the cluster.
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
    def least(self) -> int:
        """How many are kept."""
        return self._count(0)

    @property
    def most(self) -> int:
        """How many there are at most."""
        return self._count(-1)

    def _count(self, which: int) -> int:
        parts = self.nodes.split(":")
        if len(parts) > 2 or not all(part.strip().isdecimal() for part in parts) or int(parts[0]) > int(parts[-1]):
            raise InputError(f"--nodes {self.nodes} is no number of nodes.", hint="Write 4, or 2:8 with --on ray.")
        if int(parts[-1]) == 0:
            raise InputError(f"--nodes {self.nodes} asks for no worker.", hint="Write 1 or more; --end ends a pool.")
        return int(parts[which])


def start(pool: Pool, worker: WorkerSettings, *, as_json: bool) -> None:
    """Ask for the nodes of a pool, and say what became of that.

    Raises:
        TunefleetError: If the cluster cannot be asked, or does not want it.
    """
    if worker.key is None:
        raise AuthError(
            "The workers have no key.",
            hint="Set TUNEFLEET_WORKER_KEY; an admin makes one with `tunefleet keys create NAME --role worker`.",
        )
    settings = load(ClusterSettings)
    cluster = open_cluster(pool.engine, settings)
    asks = _asks(pool, settings, worker)
    found = [(ask.name, cluster.submit(ask)) for ask in asks]
    if as_json:
        print_json({"jobs": [{"name": name, "job": job} for name, job in found]})
        return
    for name, job in found:
        say(f"{pool.engine} has the job {job} ({name}).")
    again = f"tunefleet worker --on {pool.engine} --pool {pool.name} --nodes {pool.nodes} --end"
    say(f"The workers appear in `tunefleet workers` when they have their nodes; `{again}` ends them.")


def end(pool: Pool) -> None:
    """End the workers of a pool: what they run saves, and goes on elsewhere.

    Raises:
        TunefleetError: If the cluster cannot be asked.
    """
    cluster = open_cluster(pool.engine, load(ClusterSettings))
    names = _names(pool)
    known = [name for name, seen in cluster.look(names).items() if seen.stage != "ended"]
    for name in known:
        cluster.cancel(name)
    say(f"{len(known)} of {len(names)} jobs of the pool {pool.name} are told to end.")


def _asks(pool: Pool, settings: ClusterSettings, worker: WorkerSettings) -> Sequence[Ask]:
    names = _names(pool)
    made = [_ask(name, pool, settings, worker) for name in names]
    if pool.engine == "slurm":
        if pool.most > pool.least:
            raise InputError(
                f"--nodes {pool.nodes} is for Ray: Slurm keeps as many workers as it is told.",
                hint="Write one number. Where nodes shall come and go with tasks, give these `engine: slurm`.",
            )
        return made
    from tunefleet.integrations.clusters.ray import lasting

    if pool.most == pool.least:
        return [lasting(made[0])]
    url = _url(settings, worker)
    return [lasting(made[0], server=url, key=_reading_key(url))]


def _names(pool: Pool) -> list[str]:
    """Return the jobs: with Slurm one for each node, so that each comes and goes by itself."""
    return [pool.name] if pool.engine == "ray" else [f"{pool.name}-{number}" for number in range(pool.least)]


def _ask(name: str, pool: Pool, settings: ClusterSettings, worker: WorkerSettings) -> Ask:
    assert worker.key is not None, "the caller has looked"
    environment = {"TUNEFLEET_NODES_JOB": name, "TUNEFLEET_WORKER_KEY": worker.key.get_secret_value()}
    if pool.engine == "slurm" or settings.nodes_dir is not None:
        environment["TUNEFLEET_NODES_DIR"] = str(settings.nodes_folder)
    if pool.tags:
        environment["WORKER_TAGS"] = pool.tags
    if pool.allow_code:
        environment["TUNEFLEET_ALLOW_CODE"] = "true"
    single = pool.engine == "slurm"
    return Ask(
        name,
        1 if single else pool.least,
        1 if single else pool.most,
        (*shlex.split(settings.nodes_command), "worker", "--server", _url(settings, worker)),
        environment,
        cpu=pool.cpus,
        memory_bytes=parse_memory(pool.memory) if pool.memory else 0,
        gpu_count=pool.gpus,
    )


def _url(settings: ClusterSettings, worker: WorkerSettings) -> str:
    """Return the server as the nodes reach it, of which one is the head that asks how many tasks wait."""
    return settings.nodes_url or worker.server_url


def _reading_key(url: str) -> str:
    """Return the key with which the program on Ray asks how many tasks wait; a worker's key may not read that."""
    client = load(ClientSettings)
    key = client.key
    if key is None:
        raise AuthError(
            f"Nobody says how many tasks of {url} wait: a worker's key may not read that.",
            hint="Set TUNEFLEET_KEY to a viewer's (`tunefleet keys create NAME --role viewer`), or give one number.",
        )
    return key.get_secret_value()
