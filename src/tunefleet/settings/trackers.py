"""Settings of experiment trackers, in the trackers' own variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, SecretStr

from tunefleet.settings.base import ProcessSettings, variable


class TrackingSettings(ProcessSettings):
    """Experiment trackers for campaigns; a tracker also reads its other variables directly."""

    addresses: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "WANDB_BASE_URL": ("WANDB_API_KEY",),
        "DATABRICKS_HOST": ("DATABRICKS_TOKEN",),
        "HF_ENDPOINT": ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        "MLFLOW_TRACKING_URI": ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"),
    }

    wandb_entity: str | None = Field(default=None, validation_alias=variable("WANDB_ENTITY"))
    """Account or team in Weights & Biases."""
    wandb_key: SecretStr | None = Field(default=None, validation_alias=variable("WANDB_API_KEY"))
    """API key for Weights & Biases, which tracks campaigns with a `wandb_project`."""
    wandb_mode: Literal["online", "offline", "shared", "disabled", "dryrun", "run"] = Field(
        default="online", validation_alias=variable("WANDB_MODE")
    )
    """Mode of Weights & Biases: `offline` needs no key and writes run files for `wandb sync`; `disabled` sends
    nothing."""
    mlflow_uri: SecretStr | None = Field(default=None, validation_alias=variable("MLFLOW_TRACKING_URI"))
    """MLflow tracking URI, such as `http://localhost:5000` or `sqlite:////data/mlflow.db`."""
    timeout_s: float = Field(default=300.0, gt=0, validation_alias=variable("TUNEFLEET_TRACKING_TIMEOUT_S"))
    """Timeout, in seconds, for sending one cycle to a tracker; it is retried later."""

    @property
    def wandb_offline(self) -> bool:
        """Whether Weights & Biases only writes local files."""
        return self.wandb_mode in {"offline", "dryrun"}
