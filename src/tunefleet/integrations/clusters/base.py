"""The interface to a cluster manager."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

# State of a cluster job: waiting for nodes (or suspended), running, or ended.
Stage = Literal["waiting", "running", "ended"]


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """A request for nodes, and the command to start on each of them.

    Args:
        cpu: CPU cores per node; 0 for the cluster's default.
        memory_bytes: Main memory per node; 0 for the cluster's default.
        gpu_type: Part of the GPUs' product name; `None` for any. Slurm gets it as an option with its own names.
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
class ClusterJobState:
    """State of a job as reported by the cluster.

    Args:
        hopeless: Whether a retry cannot succeed, for example because the cluster has no such nodes.
    """

    job_id: str
    stage: Stage
    reason: str = ""
    withdrawn: bool = False
    hopeless: bool = False
    ending: bool = False


class Cluster(ABC):
    """A cluster manager. Methods block: call them from a thread.

    Every method raises `UnreachableError` if the cluster does not respond (retryable), and `ConflictError` with its
    message if it rejects the request (not retryable).
    """

    @abstractmethod
    def submit(self, ask: NodeRequest) -> str:
        """Submit a job and return the cluster's ID for it; a live job with the same name is not submitted again."""

    @abstractmethod
    def look(self, names: Sequence[str]) -> dict[str, ClusterJobState]:
        """Return the state of jobs by the name of their `Ask`; the cluster forgets ended jobs after a while."""

    @abstractmethod
    def cancel(self, name: str) -> None:
        """Cancel a job: the processes on its nodes get SIGTERM first; does nothing if it has ended."""
