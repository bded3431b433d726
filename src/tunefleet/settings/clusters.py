"""Settings of what gets nodes from Slurm or Ray."""

from __future__ import annotations

import shlex
from pathlib import Path

from pydantic import Field, SecretStr, field_validator

from tunefleet.settings.base import ProcessSettings, variable

_WEB = r"^https?://\S+$"


class NodeSettings(ProcessSettings):
    """What the nodes of a cluster and the server that asks for them have in common."""

    nodes_dir: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_NODES_DIR"))
    """The folder on a cluster's nodes for what runs there, one in it for each job of the cluster; with Slurm the server
    sees it too, for the logs of the jobs. Default: `nodes` in `TUNEFLEET_HOME`."""
    nodes_patience_s: float = Field(default=600.0, gt=0, validation_alias=variable("TUNEFLEET_NODES_PATIENCE_S"))
    """How long the nodes of a cluster's job are waited for once the first is there, and how long a node waits for its
    task."""

    @property
    def nodes_folder(self) -> Path:
        """`nodes_dir`, with its default and `~` resolved."""
        return (self.nodes_dir or self.home / "nodes").expanduser().absolute()


class ClusterSettings(NodeSettings):
    """Which systems are asked for nodes, and what is started there."""

    slurm: bool = Field(default=False, validation_alias=variable("TUNEFLEET_SLURM"))
    """Whether tasks with `engine: slurm` are taken: the server submits their jobs, as the user that it runs as, with
    the `sbatch` of its machine."""
    slurm_options: str = Field(default="", validation_alias=variable("TUNEFLEET_SLURM_OPTIONS"))
    """Options of `sbatch` for all these jobs, such as `--partition=gpu --account=lab`; what a task names itself counts
    instead."""
    slurm_prelude: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_SLURM_PRELUDE"))
    """A file of shell lines that go first in the batch script, such as `module load cuda`."""
    ray_address: str | None = Field(default=None, pattern=_WEB, validation_alias=variable("TUNEFLEET_RAY_ADDRESS"))
    """The URL of a Ray cluster's dashboard, such as `http://head:8265`: tasks with `engine: ray` are taken."""
    ray_token: SecretStr | None = Field(default=None, validation_alias=variable("TUNEFLEET_RAY_TOKEN"))
    """The token of that cluster, if it asks for one (`RAY_AUTH_MODE=token`)."""
    ray_python: str = Field(default="python", min_length=1, validation_alias=variable("TUNEFLEET_RAY_PYTHON"))
    """The Python of the Ray cluster, as its head finds it; Tunefleet is installed there."""
    nodes_url: str | None = Field(default=None, pattern=_WEB, validation_alias=variable("TUNEFLEET_NODES_URL"))
    """The server as the nodes reach it; default: `PUBLIC_BASE_URL`, or the address that it listens on."""
    nodes_command: str = Field(default="tunefleet", validation_alias=variable("TUNEFLEET_NODES_COMMAND"))
    """How Tunefleet is called on the nodes, such as `/shared/venv/bin/tunefleet`."""
    nodes_jobs: int = Field(default=100, ge=1, validation_alias=variable("TUNEFLEET_NODES_JOBS"))
    """How many jobs are asked for at a time; further tasks wait here."""
    nodes_look_s: float = Field(default=5.0, gt=0, validation_alias=variable("TUNEFLEET_NODES_LOOK_S"))
    """Time between two looks at the jobs."""

    @field_validator("slurm_options", "nodes_command")
    @classmethod
    def _words(cls, value: str) -> str:
        try:
            shlex.split(value)
        except ValueError as error:
            raise ValueError(f"it cannot be split into words: {error}") from None
        return value
