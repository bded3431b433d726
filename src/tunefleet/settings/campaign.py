"""Settings of campaigns: the variables of the Gradients scheduler, which are kept exactly, and few of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from tunefleet.settings.base import ProcessSettings, variable


class CampaignSettings(ProcessSettings):
    """Settings of campaigns; nothing is required, since the local provider needs no account."""

    addresses: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "GRADIENTS_API_URL": ("GRADIENTS_API_KEY",),
        "HF_ENDPOINT": ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        "S3_COMPATIBLE_ENDPOINT": ("S3_COMPATIBLE_SECRET_KEY",),
        "RUNPOD_ENDPOINT_ID": ("RUNPOD_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        "RUNPOD_ENDPOINT_BASE_URL": ("RUNPOD_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
    }

    gradients_key: SecretStr | None = Field(default=None, validation_alias=variable("GRADIENTS_API_KEY"))
    """The key for Gradients; where it is set, campaigns that name no provider are trained there."""
    gradients_url: str = Field(
        default="https://api.gradients.io", pattern=r"^https?://[^/]", validation_alias=variable("GRADIENTS_API_URL")
    )
    """Gradients' address, or that of a service that answers alike."""
    gradients_account: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9_-]+$", validation_alias=variable("GRADIENTS_ACCOUNT_ID")
    )
    """The account of that key: its tasks are looked through before an order is placed again; by default it is learnt
    from the first task."""
    gradients_settle_s: float = Field(default=15.0, ge=0, validation_alias=variable("TUNEFLEET_GRADIENTS_SETTLE_S"))
    """Seconds that an order may be on its way to Gradients after its sender has died."""
    check_interval_s: float = Field(default=600.0, gt=0, validation_alias=variable("CHECK_INTERVAL"))
    """Seconds between two looks at a task of another provider; our own tasks are followed as they go."""
    hf_username: str | None = Field(default=None, validation_alias=variable("HF_USERNAME"))
    """The Hugging Face account that models are published under."""
    hf_token: SecretStr | None = Field(default=None, validation_alias=variable("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"))
    """Its token, which may write."""
    hub_offline: bool = Field(default=False, validation_alias=variable("HF_HUB_OFFLINE"))
    """Hugging Face's own switch: nothing is fetched from its hub."""
    s3_endpoint: str | None = Field(default=None, validation_alias=variable("S3_COMPATIBLE_ENDPOINT"))
    """The S3 store that chunks are put into; without a scheme it is taken for https."""
    s3_access_key: SecretStr | None = Field(default=None, validation_alias=variable("S3_COMPATIBLE_ACCESS_KEY"))
    """The key for that store."""
    s3_secret_key: SecretStr | None = Field(default=None, validation_alias=variable("S3_COMPATIBLE_SECRET_KEY"))
    """The secret that belongs to it."""
    s3_bucket: str | None = Field(default=None, validation_alias=variable("S3_BUCKET_NAME"))
    """The bucket of the chunks."""
    use_cpu: bool = Field(default=False, validation_alias=variable("USE_CPU_FOR_MODELS"))
    """Merge models and replace tokenizers without a GPU, even where there is one."""
    use_runpod: bool = Field(default=False, validation_alias=variable("USE_RUNPOD_FOR_MERGE"))
    """Merge on RunPod serverless."""
    runpod_key: SecretStr | None = Field(default=None, validation_alias=variable("RUNPOD_API_KEY"))
    """The key for RunPod."""
    runpod_endpoint: str | None = Field(default=None, validation_alias=variable("RUNPOD_ENDPOINT_ID"))
    """The endpoint that merges."""
    runpod_url: str = Field(
        default="https://api.runpod.ai/v2",
        pattern=r"^https?://[^/]",
        validation_alias=variable("RUNPOD_ENDPOINT_BASE_URL"),
    )
    """RunPod's address, or that of a service that answers alike."""
    runpod_timeout_s: float = Field(default=10_000.0, gt=0, validation_alias=variable("RUNPOD_TIMEOUT"))
    """Seconds that one merge may take there."""
    runpod_max_retries: int = Field(default=3, ge=0, validation_alias=variable("RUNPOD_MAX_RETRIES"))
    """How often a merge that failed there is tried again."""
    runpod_send_token: bool = Field(default=True, validation_alias=variable("RUNPOD_SEND_HF_TOKEN"))
    """Whether a job gets `HF_TOKEN` in its input, as the scheduler's own handler needs it; not needed where the
    endpoint has that variable."""
    runpod_poll_s: float = Field(default=600.0, gt=0, validation_alias=variable("RUNPOD_POLL_INTERVAL"))
    """Most seconds between two looks at a merge there."""
    min_hours: float = Field(default=0.0, ge=0, validation_alias=variable("MIN_HOURS_BETWEEN_RUNS"))
    """Fewest hours from the end of a run to the start of the next, for campaigns without `run_intervals`."""
    max_hours: float = Field(
        default=0.0, ge=0, validate_default=True, validation_alias=variable("MAX_HOURS_BETWEEN_RUNS")
    )
    """Most hours, beside the days."""
    min_days: float = Field(default=0.0, ge=0, validation_alias=variable("MIN_DAYS_BETWEEN_RUNS"))
    """Fewest days, beside the hours."""
    max_days: float = Field(
        default=0.0, ge=0, validate_default=True, validation_alias=variable("MAX_DAYS_BETWEEN_RUNS")
    )
    """Most days, beside the hours."""

    @field_validator("max_hours", "max_days")
    @classmethod
    def _ordered(cls, value: float, info: ValidationInfo) -> float:
        unit = (info.field_name or "").removeprefix("max_")
        least = info.data.get(f"min_{unit}", 0.0)
        if value < least:
            end = f"{unit.upper()}_BETWEEN_RUNS"
            raise ValueError(f"MAX_{end} is {value:g}, less than MIN_{end}, which is {least:g}")
        return value


class PublishSettings(ProcessSettings):
    """What `tunefleet push` needs to publish; the variables are those of Hugging Face and Amazon."""

    addresses: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "HF_ENDPOINT": ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        "TUNEFLEET_S3_ENDPOINT": ("AWS_SECRET_ACCESS_KEY",),
    }

    hf_token: SecretStr | None = Field(default=None, validation_alias=variable("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"))
    """Token of a Hugging Face account that may write; default: the one that `hf auth login` has saved. On a worker it
    opens gated and private models."""
    hf_endpoint: str | None = Field(default=None, validation_alias=variable("HF_ENDPOINT"))
    """Another hub than huggingface.co, such as a mirror of a firm."""
    s3_endpoint: str | None = Field(default=None, validation_alias=variable("TUNEFLEET_S3_ENDPOINT"))
    """The URL of an S3 service that is not Amazon's."""
    s3_region: str | None = Field(default=None, validation_alias=variable("AWS_REGION", "AWS_DEFAULT_REGION"))
    """Region of the bucket."""
    s3_access_key: SecretStr | None = Field(default=None, validation_alias=variable("AWS_ACCESS_KEY_ID"))
    """A key that may write to the bucket; default: what `AWS_PROFILE`, Amazon's files or the machine's role give."""
    s3_secret_key: SecretStr | None = Field(default=None, validation_alias=variable("AWS_SECRET_ACCESS_KEY"))
    """Belongs to the access key."""
    s3_session_token: SecretStr | None = Field(default=None, validation_alias=variable("AWS_SESSION_TOKEN"))
    """Belongs to both, where they are temporary."""
