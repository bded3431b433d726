"""The interface to a system that hands out machines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

# Of a job of the cluster: it waits for its nodes or to go on where it was frozen, has them, or is over.
Stage = Literal["waiting", "running", "ended"]


@dataclass(frozen=True, slots=True)
class Ask:
    """Nodes that are wanted, and what is started on each of them.

    Args:
        cpu: Cores of each; 0 leaves it to the cluster.
        memory_bytes: Main memory of each; 0 leaves it to the cluster.
        gpu_type: Part of their product name; null for any. Slurm is told by an option, in its own words.
    """

    name: str
    nodes: int
    nodes_max: int
    command: Sequence[str]
    environment: Mapping[str, str]
    cpu: int = 0
    memory_bytes: int = 0
    gpu_count: int = 0
    gpu_type: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    patience_s: float = 3600.0
    grace_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the cluster says of a job.

    Args:
        hopeless: Whether it ended for a reason that no repetition mends, such as nodes that the cluster does not have.
    """

    job_id: str
    stage: Stage
    told: str = ""
    withdrawn: bool = False
    hopeless: bool = False
    ending: bool = False


class Cluster(ABC):
    """A system that hands out machines. Its methods block: call them from a thread.

    Every method raises `UnreachableError` if the system does not answer (worth another try), and `ConflictError` with
    its words if it does not want what it is asked (not worth one).
    """

    @abstractmethod
    def submit(self, ask: Ask) -> str:
        """Ask for nodes, and return the cluster's name for the job; a job of that name that lives is not made anew."""

    @abstractmethod
    def look(self, names: Sequence[str]) -> dict[str, Seen]:
        """Return what the cluster knows of jobs, by the name of their `Ask`; those that are over it forgets in time."""

    @abstractmethod
    def cancel(self, name: str) -> None:
        """End a job, politely first: what runs on its nodes gets SIGTERM; nothing happens if it is over."""
