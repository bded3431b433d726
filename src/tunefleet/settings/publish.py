"""Settings of `tunefleet push`: where models are published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field, SecretStr

from tunefleet.settings.base import ProcessSettings, variable


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
