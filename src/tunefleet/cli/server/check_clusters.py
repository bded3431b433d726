"""The checks of `tunefleet doctor` that ask Slurm and Ray, where the settings name them."""

from __future__ import annotations

from typing import Final, Literal

from tunefleet.cli.server.check_store import Finding, bad, good, warning
from tunefleet.errors import TunefleetError
from tunefleet.settings import ClusterSettings, load

# A job that is never asked for: that the cluster does not know it says that the cluster answers.
_NOBODY: Final = "tunefleet-doctor"


def slurm() -> Finding | None:
    """Check that Slurm answers; None if no task may ask it for nodes."""
    settings = load(ClusterSettings)
    return _answers("slurm", settings) if settings.slurm else None


def ray() -> Finding | None:
    """Check that Ray answers; None if no task may ask it for nodes."""
    settings = load(ClusterSettings)
    return None if settings.ray_address is None else _answers("ray", settings)


def _answers(engine: Literal["slurm", "ray"], settings: ClusterSettings) -> Finding:
    from tunefleet.integrations.clusters.factory import open_cluster

    name = engine.capitalize()
    try:
        open_cluster(engine, settings).look([_NOBODY])
    except TunefleetError as error:
        return bad(
            name, error.message, error.hint or f"Check the cluster, and the settings TUNEFLEET_{engine.upper()}_*."
        )
    if settings.nodes_url is None:
        hint = "Set TUNEFLEET_NODES_URL to the server's address in the nodes' network."
        return warning(name, "it answers; its nodes may not find the server where that listens", hint)
    return good(name, f"it answers; its nodes start {settings.nodes_command} for {settings.nodes_url}")
