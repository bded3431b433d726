"""Settings of the Slurm and Ray integrations."""

from __future__ import annotations

import shlex
from pathlib import Path

from pydantic import Field, SecretStr, field_validator

from tunefleet.settings.base import ProcessSettings, variable

_WEB = r"^https?://\S+$"


class NodeSettings(ProcessSettings):
    """Settings shared by cluster nodes and the server that requests them."""

    nodes_dir: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_NODES_DIR"))
    """Working folder on cluster nodes, with one subfolder per cluster job; with Slurm it must also be visible to the
    server, which reads the job logs there. Default: `nodes` in `TUNEFLEET_HOME`."""
    nodes_patience_s: float = Field(default=600.0, gt=0, validation_alias=variable("TUNEFLEET_NODES_PATIENCE_S"))
    """Seconds to wait for the remaining nodes of a cluster job after the first has started, and for a node to get its
    task."""

    @property
    def nodes_folder(self) -> Path:
        """`nodes_dir` with its default, `~` resolved."""
        return (self.nodes_dir or self.home / "nodes").expanduser().absolute()


class ClusterSettings(NodeSettings):
    """Which cluster managers the server requests nodes from, and what it starts there."""

    slurm: bool = Field(default=False, validation_alias=variable("TUNEFLEET_SLURM"))
    """Accept tasks with `engine: slurm`: the server submits their jobs with the `sbatch` of its machine, as the user
    that it runs as."""
    slurm_options: str = Field(default="", validation_alias=variable("TUNEFLEET_SLURM_OPTIONS"))
    """`sbatch` options for all jobs, such as `--partition=gpu --account=lab`; options of a task take precedence."""
    slurm_prelude: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_SLURM_PRELUDE"))
    """File with shell lines to insert at the start of the batch script, such as `module load cuda`."""
    ray_address: str | None = Field(default=None, pattern=_WEB, validation_alias=variable("TUNEFLEET_RAY_ADDRESS"))
    """URL of a Ray cluster's dashboard, such as `http://head:8265`; enables tasks with `engine: ray`."""
    ray_token: SecretStr | None = Field(default=None, validation_alias=variable("TUNEFLEET_RAY_TOKEN"))
    """Token of that cluster, if it requires one (`RAY_AUTH_MODE=token`)."""
    ray_python: str = Field(default="python", min_length=1, validation_alias=variable("TUNEFLEET_RAY_PYTHON"))
    """Python interpreter on the Ray cluster, as its head node finds it; Tunefleet must be installed in it."""
    nodes_url: str | None = Field(default=None, pattern=_WEB, validation_alias=variable("TUNEFLEET_NODES_URL"))
    """URL of the server as seen from the nodes; default: `TUNEFLEET_PUBLIC_URL`, or the address that it listens on."""
    nodes_command: str = Field(default="tunefleet", validation_alias=variable("TUNEFLEET_NODES_COMMAND"))
    """Command that runs Tunefleet on the nodes, such as `/shared/venv/bin/tunefleet`."""
    nodes_jobs: int = Field(default=100, ge=1, validation_alias=variable("TUNEFLEET_NODES_JOBS"))
    """Maximum number of cluster jobs at the same time; further tasks stay in the server's queue."""
    nodes_look_s: float = Field(default=5.0, gt=0, validation_alias=variable("TUNEFLEET_NODES_LOOK_S"))
    """Seconds between status checks of the jobs."""

    @field_validator("slurm_options", "nodes_command")
    @classmethod
    def _words(cls, value: str) -> str:
        try:
            shlex.split(value)
        except ValueError as error:
            raise ValueError(f"cannot be parsed as a command line: {error}") from None
        return value
