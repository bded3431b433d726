"""The cluster engines of a server, from its settings."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tunefleet.errors import Fault
from tunefleet.integrations.clusters import Cluster
from tunefleet.integrations.clusters.factory import Engine, open_cluster
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


def of(settings: ServerSettings) -> Engines:
    """Return the engines that the settings enable.

    Raises:
        MachineError: If one cannot be used from this machine.
    """
    wanted: dict[Engine, bool] = {"slurm": settings.slurm, "ray": settings.ray_address is not None}
    clusters: dict[str, Cluster] = {engine: open_cluster(engine, settings) for engine, asked in wanted.items() if asked}
    return Engines(clusters, any(word.startswith(_SELECTING_OPTIONS) for word in shlex.split(settings.slurm_options)))


def faults(engines: Engines, specs: Iterable[tuple[TaskNode, BaseTaskSpec]]) -> list[Fault]:
    """Return errors for tasks whose engine is not enabled, or cannot request the GPUs that they name."""
    found, absent = [], engines.absent
    for node, spec in specs:
        if spec.engine is None:
            continue
        if spec.engine.type in absent:
            message, _, hint = absent[spec.engine.type].partition(": ")
            found.append(node.fault("engine", message, hint))
        if (gpu_type := _unselected_gpu(spec, engines)) is not None:
            message = f"Slurm has its own names for GPUs and cannot select the type {gpu_type}"
            found.append(node.fault("resources.hardware.gpu.type", message, _HINT))
    return found


def _unselected_gpu(spec: BaseTaskSpec, engines: Engines) -> str | None:
    """Return the requested GPU type if it is not passed to the engine."""
    engine, gpu = spec.engine, spec.resources.hardware.gpu
    if engine is None or engine.type != "slurm" or gpu is None or not gpu.count or gpu.type == "any":
        return None
    named = engine.gpu_type or engine.constraint or engine.partition or engine.reservation
    return None if named or engines.chosen else gpu.type
