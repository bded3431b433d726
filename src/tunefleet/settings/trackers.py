"""Settings of trackers: their own variables, which are kept exactly, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, SecretStr

from tunefleet.settings.base import ProcessSettings, variable


class TrackingSettings(ProcessSettings):
    """Where trackers keep the runs of campaigns; a tracker reads further variables of its own by itself."""

    addresses: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "WANDB_BASE_URL": ("WANDB_API_KEY",),
        "DATABRICKS_HOST": ("DATABRICKS_TOKEN",),
        "HF_ENDPOINT": ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        "MLFLOW_TRACKING_URI": ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"),
    }

    wandb_entity: str | None = Field(default=None, validation_alias=variable("WANDB_ENTITY"))
    """Account or team in Weights & Biases."""
    wandb_key: SecretStr | None = Field(default=None, validation_alias=variable("WANDB_API_KEY"))
    """The key for Weights & Biases: campaigns with a `wandb_project` are tracked there."""
    wandb_mode: Literal["online", "offline", "shared", "disabled", "dryrun", "run"] = Field(
        default="online", validation_alias=variable("WANDB_MODE")
    )
    """Weights & Biases' own switch: `offline` needs no key and writes run files for `wandb sync`; `disabled` tells it
    nothing."""
    mlflow_uri: SecretStr | None = Field(default=None, validation_alias=variable("MLFLOW_TRACKING_URI"))
    """Where MLflow is, such as `http://localhost:5000` or `sqlite:////data/mlflow.db`."""
    timeout_s: float = Field(default=300.0, gt=0, validation_alias=variable("TUNEFLEET_TRACKING_TIMEOUT_S"))
    """Seconds that a tracker may take for one cycle; after that it is tried again later."""

    @property
    def wandb_offline(self) -> bool:
        """Whether Weights & Biases only writes files."""
        return self.wandb_mode in {"offline", "dryrun"}
