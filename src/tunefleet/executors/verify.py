"""`verify`: whether a model is whole and can be trained."""

from __future__ import annotations

from tunefleet.executors.base import JobExecutor, Output
from tunefleet.executors.needs import missing
from tunefleet.schemas.job_folder import JobFolder

_MODEL = "final_model"


class VerifyExecutor(JobExecutor):
    """Verifies a model; leaves it with another tokenizer if that was asked for."""

    kind = "verify"
    program = "tunefleet.workloads.verification:main"

    def unavailable_reason(self) -> str | None:
        """Name the libraries that are missing, without importing those that are there."""
        return missing("torch", "transformers", "safetensors", extra="train", what="The training libraries")

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return the model with its new tokenizer, if there is one."""
        made = folder.root / _MODEL
        return [Output(name=_MODEL, kind="model", path=made)] if made.is_dir() else []
