"""Nodes from a cluster manager, Slurm or Ray: requesting nodes, and monitoring the requests.

Knows the protocol of each, whose module is loaded on demand. Does not know what a task is, when nodes are needed, or
what runs on them: it gets a command line, and starts it once on every node.
"""

from __future__ import annotations

import shlex
from typing import Literal

from tunefleet.errors import MachineError
from tunefleet.integrations.clusters.base import Cluster, ClusterJobState, NodeRequest, Stage
from tunefleet.settings import ClusterSettings, inherited_environment

__all__ = ["Cluster", "ClusterJobState", "Engine", "NodeRequest", "Stage", "open_cluster"]

Engine = Literal["slurm", "ray"]


def open_cluster(engine: Engine, settings: ClusterSettings) -> Cluster:
    """Return the client of a cluster manager.

    Raises:
        MachineError: If it is not accessible from this machine, or its address is not configured.
    """
    if engine == "slurm":
        from tunefleet.integrations.clusters.slurm import Slurm  # noqa: PLC0415 -- most processes ask none

        return Slurm(
            settings.nodes_folder,
            environment=inherited_environment(),
            prelude=_prelude(settings),
            extra=shlex.split(settings.slurm_options),
        )
    if settings.ray_address is None:
        raise MachineError(
            "The address of the Ray cluster is not configured.",
            hint="Set TUNEFLEET_RAY_ADDRESS, such as http://head:8265.",
        )
    from tunefleet.integrations.clusters.ray import Ray  # noqa: PLC0415 -- most processes ask none

    token = settings.ray_token
    return Ray(settings.ray_address, None if token is None else token.get_secret_value(), python=settings.ray_python)


def _prelude(settings: ClusterSettings) -> str:
    path = settings.slurm_prelude
    if path is None:
        return ""
    try:
        return path.expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise MachineError(
            f"Cannot read the file of TUNEFLEET_SLURM_PRELUDE: {error}.",
            hint="Set it to a file of shell commands that the server's user can read, or unset it.",
        ) from error
