"""Which engines a server can ask for nodes, by its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tunefleet.clusters import Cluster
from tunefleet.clusters.opening import Engine, open_cluster
from tunefleet.errors import Fault
from tunefleet.settings import ServerSettings
from tunefleet.spec import BaseTaskSpec, TaskNode
from tunefleet.spec.engine import EngineSpec

_ABSENT: Final = {
    "slurm": "this server asks no Slurm for nodes: an admin sets TUNEFLEET_SLURM=true where it has sbatch",
    "ray": "this server asks no Ray for nodes: an admin sets TUNEFLEET_RAY_ADDRESS to the cluster's dashboard",
}


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of a server.

    Args:
        clusters: Those that it asks, by name.
    """

    clusters: Mapping[str, Cluster] = field(default_factory=dict)

    @property
    def absent(self) -> dict[str, str]:
        """The others, each with a sentence that says what is to be set."""
        return {name: why for name, why in _ABSENT.items() if name not in self.clusters}


def of(settings: ServerSettings) -> Engines:
    """Return the engines that the settings name.

    Raises:
        MachineError: If one cannot be asked from this machine.
    """
    wanted: dict[Engine, bool] = {"slurm": settings.slurm, "ray": settings.ray_address is not None}
    return Engines({engine: open_cluster(engine, settings) for engine, asked in wanted.items() if asked})


def faults(absent: Mapping[str, str], told: Iterable[tuple[TaskNode, BaseTaskSpec]]) -> list[Fault]:
    """Find tasks whose engine this server cannot ask for nodes, or not for the GPUs that they name.

    Args:
        absent: Those engines, as `Engines.absent` has them.
        told: The tasks of a document.
    """
    found = []
    for node, spec in told:
        if spec.engine is None:
            continue
        if spec.engine.type in absent:
            message, _, hint = absent[spec.engine.type].partition(": ")
            found.append(node.fault("engine", message, hint))
        gpu = spec.resources.hardware.gpu
        if gpu is not None and gpu.count and gpu.type != "any" and (why := _untold(spec.engine, gpu.type)) is not None:
            found.append(node.fault("resources.hardware.gpu.type", *why))
    return found


def _untold(engine: EngineSpec, gpu_type: str) -> tuple[str, str] | None:
    """Say why an engine is not told which type of GPU is wanted, and what to write instead; null if it is told."""
    if engine.type != "slurm":
        return None
    if engine.gpu_type or engine.constraint or engine.partition or engine.reservation:
        return None
    hint = 'write engine: {type: slurm, gpu_type: NAME} with the name that `sinfo -o "%G"` shows, or a partition'
    return f"Slurm has its own names for GPUs, and is not told of the type {gpu_type}", hint
