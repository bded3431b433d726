"""The cluster engines of a server, from its settings, and why tasks wait for nodes from them."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.federations import federations
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.fleet import clusters
from tunefleet.db.fleet.clusters import ClusterJobRow
from tunefleet.db.repositories import dependencies
from tunefleet.db.rows import TaskRow
from tunefleet.errors import Fault
from tunefleet.integrations.clusters import Cluster, Engine, open_cluster
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.settings import ServerSettings
from tunefleet.spec import BaseTaskSpec, TaskNode

# Not gres: the task's own, which says how many, counts instead.
# Options of `sbatch` by which it takes GPUs of a type, whatever Slurm calls it.
_SELECTING_OPTIONS: Final = ("--partition", "--constraint", "--reservation", "--gpus", "-p", "-C", "-G")
_ABSENT: Final = {
    "slurm": "Slurm is not enabled on this server: an admin sets TUNEFLEET_SLURM=true where it has sbatch",
    "ray": "Ray is not enabled on this server: an admin sets TUNEFLEET_RAY_ADDRESS to the cluster's dashboard",
}
_HINT: Final = 'set engine: {type: slurm, gpu_type: NAME} with the name that `sinfo -o "%G"` shows, or a partition'


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of a server."""

    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    chosen: bool = False

    @property
    def absent(self) -> dict[str, str]:
        """Engines that are not enabled, each with the setting that enables it."""
        return {name: why for name, why in _ABSENT.items() if name not in self.clusters}


def engines_of(settings: ServerSettings) -> Engines:
    """Return the engines that the settings enable.

    Raises:
        MachineError: If one cannot be used from this machine.
    """
    wanted: dict[Engine, bool] = {"slurm": settings.slurm, "ray": settings.ray_address is not None}
    clusters: dict[str, Cluster] = {engine: open_cluster(engine, settings) for engine, asked in wanted.items() if asked}
    return Engines(clusters, any(word.startswith(_SELECTING_OPTIONS) for word in shlex.split(settings.slurm_options)))


def engine_faults(engines: Engines, specs: Iterable[tuple[TaskNode, BaseTaskSpec]]) -> list[Fault]:
    """Return errors for tasks whose engine is not enabled, or cannot request the GPUs that they name."""
    found, absent = [], engines.absent
    for node, spec in specs:
        if spec.engine is None:
            continue
        if spec.engine.type in absent:
            message, _, hint = absent[spec.engine.type].partition(": ")
            found.append(node.fault("engine", message, hint))
        if (gpu_type := _unselected_gpu(spec, engines)) is not None:
            message = f"Slurm uses its own GPU names and cannot select the type {gpu_type}"
            found.append(node.fault("resources.hardware.gpu.type", message, _HINT))
    return found


def _unselected_gpu(spec: BaseTaskSpec, engines: Engines) -> str | None:
    """Return the requested GPU type if it is not passed to the engine."""
    engine, gpu = spec.engine, spec.resources.hardware.gpu
    if engine is None or engine.type != "slurm" or gpu is None or not gpu.count or gpu.type == "any":
        return None
    named = engine.gpu_type or engine.constraint or engine.partition or engine.reservation
    return None if named or engines.chosen else gpu.type


def node_reasons(
    connection: Connection, rows: Sequence[TaskRow], absent: Mapping[str, str], most: int
) -> dict[str, str]:
    """Return why queued tasks wait for an engine, by task id; tasks without an engine are left out."""
    jobs = [row for row in rows if row.slot_class == "job"]
    engines = clusters.engines_of(connection, [row.seq for row in jobs])
    if not engines:
        return {}
    newest = clusters.newest(connection, list(engines))
    when = _when(clusters.count_live(connection), most)
    return {row.id: _why(engines[row.seq], newest.get(row.seq), absent, when) for row in jobs if row.seq in engines}


def _when(out: int, most: int) -> str:
    """Return when nodes will be requested for a task without a job."""
    if out < most:
        return "soon"
    jobs = "the open job" if out == 1 else f"one of the {out} open jobs"
    return f"when {jobs} has ended (TUNEFLEET_NODES_JOBS is {most})"


def _why(engine: str, job: ClusterJobRow | None, absent: Mapping[str, str], when: str) -> str:
    if engine in absent:
        return f"waiting: {absent[engine]}."
    reason = (job.told or "").rstrip(".") if job is not None else ""
    if job is None or job.state == "ended":
        last = f" The last job ended: {reason}." if reason else ""
        return f"waiting: nodes of {engine} are requested {when}.{last}"
    number = job.job_id or job.name
    match job.state:
        case "submitting":
            return f"waiting: requesting nodes of {engine}{f' ({reason})' if reason else ''}."
        case "waiting":
            return f"waiting: job {number} of {engine} has no nodes yet ({reason})."
        case "leaving":
            return f"waiting: job {number} of {engine} is ending, then nodes are requested again."
    return f"waiting: job {number} of {engine} has its nodes; their workers are starting."


def pending_reasons(connection: Connection, rows: Sequence[TaskRow], joins: Mapping[int, str]) -> dict[str, str]:
    """Return the status of pending and sharded tasks as a sentence, by task id.

    Args:
        joins: `seq` of a sharded task whose shards cannot be merged yet → what they wait for.
    """
    pending = [row for row in rows if row.status == TaskStatus.PENDING]
    above = dependencies.upstreams(connection, [row.seq for row in pending])
    found = {}
    for row in pending:
        open_ = [each for each in above[row.seq] if not TaskStatus(each.task.status).final]
        found[row.id] = f"waiting for {', '.join(f'{each.name} ({each.task.status})' for each in open_)}."
    sharded = [row for row in rows if row.status == TaskStatus.RUNNING and row.worker_id is None]
    federated = federations.of_tasks(connection, [row.seq for row in sharded])
    for seq, members in dependencies.shards_of_parents(connection, [row.seq for row in sharded]).items():
        counts = Counter(part.status for part in members)
        summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        done = set(counts) == {TaskStatus.COMPLETED.value}
        suffix = f"; their files {joins.get(seq, 'are being merged')}" if done else ""
        if seq in federated:
            suffix = _federation(federated[seq])
        found[next(row.id for row in sharded if row.seq == seq)] = f"{len(members)} shards: {summary}{suffix}."
    return found


def _federation(row: FederationRow) -> str:
    versions = f"version {row.version} is its newest" if row.version else "it has no version yet"
    return f"; their federation {row.id} is {row.status}, in round {row.round}, and {versions}"
