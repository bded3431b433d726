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
    """Find tasks whose engine this server cannot ask for nodes.

    Args:
        absent: Those engines, as `Engines.absent` has them.
        told: The tasks of a document.
    """
    named = [(node, spec.engine.type) for node, spec in told if spec.engine is not None]
    parted = [(node, absent[engine].partition(": ")) for node, engine in named if engine in absent]
    return [node.fault("engine", message, hint) for node, (message, _, hint) in parted]
