"""Makes of the settings what is asked for nodes; each system's module is loaded when it is wanted."""

from __future__ import annotations

import shlex
from typing import Literal

from tunefleet.errors import MachineError
from tunefleet.integrations.clusters.base import Cluster
from tunefleet.settings import ClusterSettings, inherited_environment

Engine = Literal["slurm", "ray"]


def open_cluster(engine: Engine, settings: ClusterSettings) -> Cluster:
    """Return what asks a system for nodes.

    Raises:
        MachineError: If it cannot be asked from this machine, or the settings do not say where it is.
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
        raise MachineError("It is not known where Ray is.", hint="Set TUNEFLEET_RAY_ADDRESS, such as http://head:8265.")
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
            f"The file of TUNEFLEET_SLURM_PRELUDE cannot be read: {error}.",
            hint="Name a file of shell lines that the user of the server may read, or unset the variable.",
        ) from error
