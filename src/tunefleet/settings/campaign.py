"""Settings of campaigns and of their trackers; the Gradients scheduler's variables are accepted under their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from tunefleet.settings.base import ProcessSettings, variable


class CampaignSettings(ProcessSettings):
    """Settings of campaigns; all optional: the local provider needs no account."""

    addresses: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "TUNEFLEET_GRADIENTS_URL": ("GRADIENTS_API_KEY",),
        "HF_ENDPOINT": ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        "TUNEFLEET_CAMPAIGN_S3_ENDPOINT": ("TUNEFLEET_CAMPAIGN_S3_SECRET_KEY",),
        "TUNEFLEET_RUNPOD_ENDPOINT": ("RUNPOD_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        "TUNEFLEET_RUNPOD_URL": ("RUNPOD_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
    }

    gradients_key: SecretStr | None = Field(default=None, validation_alias=variable("GRADIENTS_API_KEY"))
    """API key for Gradients. If it is set, campaigns without a provider train there."""
    gradients_url: str = Field(
        default="https://api.gradients.io",
        pattern=r"^https?://[^/]",
        validation_alias=variable("TUNEFLEET_GRADIENTS_URL", "GRADIENTS_API_URL"),
    )
    """URL of Gradients or of a service with the same API."""
    gradients_account: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_-]+$",
        validation_alias=variable("TUNEFLEET_GRADIENTS_ACCOUNT", "GRADIENTS_ACCOUNT_ID"),
    )
    """Account that the key belongs to. Before a training job is submitted again, the account's tasks are searched for
    it. Default: taken from the first task."""
    gradients_settle_s: float = Field(default=15.0, ge=0, validation_alias=variable("TUNEFLEET_GRADIENTS_SETTLE_S"))
    """Seconds to wait for a submitted job to appear at Gradients if the process that sent it has died."""
    check_interval_s: float = Field(
        default=600.0, gt=0, validation_alias=variable("TUNEFLEET_CAMPAIGN_CHECK_S", "CHECK_INTERVAL")
    )
    """Seconds between status checks of a task at an external provider. Tasks on this server are followed live."""
    hf_username: str | None = Field(default=None, validation_alias=variable("TUNEFLEET_HF_USERNAME", "HF_USERNAME"))
    """Hugging Face account that models are published under."""
    hf_token: SecretStr | None = Field(default=None, validation_alias=variable("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"))
    """Token for that account, with write permission."""
    hub_offline: bool = Field(default=False, validation_alias=variable("HF_HUB_OFFLINE"))
    """Hugging Face's offline mode: nothing is downloaded from the Hub."""
    s3_endpoint: str | None = Field(
        default=None, validation_alias=variable("TUNEFLEET_CAMPAIGN_S3_ENDPOINT", "S3_COMPATIBLE_ENDPOINT")
    )
    """S3 endpoint for the training data chunks. Without a scheme, https is used."""
    s3_access_key: SecretStr | None = Field(
        default=None, validation_alias=variable("TUNEFLEET_CAMPAIGN_S3_ACCESS_KEY", "S3_COMPATIBLE_ACCESS_KEY")
    )
    """Access key for that endpoint."""
    s3_secret_key: SecretStr | None = Field(
        default=None, validation_alias=variable("TUNEFLEET_CAMPAIGN_S3_SECRET_KEY", "S3_COMPATIBLE_SECRET_KEY")
    )
    """Secret for that access key."""
    s3_bucket: str | None = Field(
        default=None, validation_alias=variable("TUNEFLEET_CAMPAIGN_S3_BUCKET", "S3_BUCKET_NAME")
    )
    """Bucket for the chunks."""
    use_cpu: bool = Field(default=False, validation_alias=variable("TUNEFLEET_CAMPAIGN_CPU", "USE_CPU_FOR_MODELS"))
    """Merge models and replace tokenizers on the CPU, even if a GPU is available."""
    use_runpod: bool = Field(default=False, validation_alias=variable("TUNEFLEET_RUNPOD", "USE_RUNPOD_FOR_MERGE"))
    """Merge on RunPod serverless."""
    runpod_key: SecretStr | None = Field(default=None, validation_alias=variable("RUNPOD_API_KEY"))
    """API key for RunPod."""
    runpod_endpoint: str | None = Field(
        default=None, validation_alias=variable("TUNEFLEET_RUNPOD_ENDPOINT", "RUNPOD_ENDPOINT_ID")
    )
    """Serverless endpoint that runs the merges."""
    runpod_url: str = Field(
        default="https://api.runpod.ai/v2",
        pattern=r"^https?://[^/]",
        validation_alias=variable("TUNEFLEET_RUNPOD_URL", "RUNPOD_ENDPOINT_BASE_URL"),
    )
    """URL of RunPod or of a service with the same API."""
    runpod_timeout_s: float = Field(
        default=10_000.0, gt=0, validation_alias=variable("TUNEFLEET_RUNPOD_TIMEOUT_S", "RUNPOD_TIMEOUT")
    )
    """Timeout for a merge on RunPod, in seconds."""
    runpod_max_retries: int = Field(
        default=3, ge=0, validation_alias=variable("TUNEFLEET_RUNPOD_MAX_RETRIES", "RUNPOD_MAX_RETRIES")
    )
    """Maximum number of retries for a merge that failed on RunPod."""
    runpod_send_token: bool = Field(
        default=True, validation_alias=variable("TUNEFLEET_RUNPOD_SEND_TOKEN", "RUNPOD_SEND_HF_TOKEN")
    )
    """Send `HF_TOKEN` in the job's input, as the Gradients scheduler's own handler expects. Not needed if the endpoint
    sets that variable."""
    runpod_poll_s: float = Field(
        default=600.0, gt=0, validation_alias=variable("TUNEFLEET_RUNPOD_POLL_S", "RUNPOD_POLL_INTERVAL")
    )
    """Maximum number of seconds between status checks of a merge on RunPod."""
    min_hours: float = Field(
        default=0.0, ge=0, validation_alias=variable("TUNEFLEET_CAMPAIGN_MIN_HOURS", "MIN_HOURS_BETWEEN_RUNS")
    )
    """Minimum hours between the end of a run and the start of the next, for campaigns without `run_intervals`."""
    max_hours: float = Field(
        default=0.0,
        ge=0,
        validate_default=True,
        validation_alias=variable("TUNEFLEET_CAMPAIGN_MAX_HOURS", "MAX_HOURS_BETWEEN_RUNS"),
    )
    """Maximum hours, added to the days."""
    min_days: float = Field(
        default=0.0, ge=0, validation_alias=variable("TUNEFLEET_CAMPAIGN_MIN_DAYS", "MIN_DAYS_BETWEEN_RUNS")
    )
    """Minimum days, added to the hours."""
    max_days: float = Field(
        default=0.0,
        ge=0,
        validate_default=True,
        validation_alias=variable("TUNEFLEET_CAMPAIGN_MAX_DAYS", "MAX_DAYS_BETWEEN_RUNS"),
    )
    """Maximum days, added to the hours."""

    @field_validator("max_hours", "max_days")
    @classmethod
    def _ordered(cls, value: float, info: ValidationInfo) -> float:
        unit = (info.field_name or "").removeprefix("max_")
        least = info.data.get(f"min_{unit}", 0.0)
        if value < least:
            own = "TUNEFLEET_CAMPAIGN"
            raise ValueError(
                f"{own}_MAX_{unit.upper()} is {value:g}, less than {own}_MIN_{unit.upper()}, which is {least:g}"
            )
        return value


class PublishSettings(ProcessSettings):
    """Credentials for `tunefleet push`, in the variables of Hugging Face and AWS."""

    addresses: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "HF_ENDPOINT": ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        "TUNEFLEET_S3_ENDPOINT": ("AWS_SECRET_ACCESS_KEY",),
    }

    hf_token: SecretStr | None = Field(default=None, validation_alias=variable("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"))
    """Hugging Face token with write permission. Default: the token saved by `hf auth login`. On a worker it gives
    access to gated and private models, and `push` tasks publish with it."""
    hf_endpoint: str | None = Field(default=None, validation_alias=variable("HF_ENDPOINT"))
    """URL of a hub other than huggingface.co, such as a company mirror."""
    s3_endpoint: str | None = Field(default=None, validation_alias=variable("TUNEFLEET_S3_ENDPOINT"))
    """URL of an S3-compatible service. Default: Amazon S3."""
    s3_region: str | None = Field(default=None, validation_alias=variable("AWS_REGION", "AWS_DEFAULT_REGION"))
    """Region of the bucket."""
    s3_access_key: SecretStr | None = Field(default=None, validation_alias=variable("AWS_ACCESS_KEY_ID"))
    """Access key with write permission. Default: from `AWS_PROFILE`, the AWS config files or the machine's role."""
    s3_secret_key: SecretStr | None = Field(default=None, validation_alias=variable("AWS_SECRET_ACCESS_KEY"))
    """Secret for that access key."""
    s3_session_token: SecretStr | None = Field(default=None, validation_alias=variable("AWS_SESSION_TOKEN"))
    """Session token, for temporary credentials."""


class TrackingSettings(ProcessSettings):
    """Experiment trackers for campaigns; a tracker also reads its other variables directly."""

    addresses: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "WANDB_BASE_URL": ("WANDB_API_KEY",),
        "DATABRICKS_HOST": ("DATABRICKS_TOKEN",),
        "HF_ENDPOINT": ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        "MLFLOW_TRACKING_URI": ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"),
    }

    wandb_entity: str | None = Field(default=None, validation_alias=variable("WANDB_ENTITY"))
    """Weights & Biases account or team."""
    wandb_key: SecretStr | None = Field(default=None, validation_alias=variable("WANDB_API_KEY"))
    """Weights & Biases API key, for campaigns with a `wandb_project`."""
    wandb_mode: Literal["online", "offline", "shared", "disabled", "dryrun", "run"] = Field(
        default="online", validation_alias=variable("WANDB_MODE")
    )
    """Weights & Biases mode: `offline` needs no key and writes run files for `wandb sync`; `disabled` sends nothing."""
    mlflow_uri: SecretStr | None = Field(default=None, validation_alias=variable("MLFLOW_TRACKING_URI"))
    """MLflow tracking URI, such as `http://localhost:5000` or `sqlite:////data/mlflow.db`."""
    timeout_s: float = Field(default=300.0, gt=0, validation_alias=variable("TUNEFLEET_TRACKING_TIMEOUT_S"))
    """Timeout for sending one cycle to a tracker, in seconds. It is retried later."""

    @property
    def wandb_offline(self) -> bool:
        """Whether Weights & Biases only writes local files."""
        return self.wandb_mode in {"offline", "dryrun"}
