"""`inference`: answers prompts with a model, and several equal tasks in one run."""

from __future__ import annotations

from typing import ClassVar

from tunefleet.executors.base import JobExecutor, Output
from tunefleet.executors.needs import missing
from tunefleet.schemas.control import BETWEEN_ITEMS
from tunefleet.schemas.job_folder import JobFolder


class InferenceExecutor(JobExecutor):
    """Puts items through a language model; leaves its answers in the result."""

    kind = "inference"
    program = "tunefleet.workloads.inference:main"
    merges: ClassVar[bool] = True
    engine: ClassVar[bool] = True
    heeds = BETWEEN_ITEMS

    def unavailable_reason(self) -> str | None:
        """Name the libraries that are missing, without importing those that are there."""
        return missing("torch", "transformers", "peft", "datasets", extra="train")

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return nothing: answers are in the result, and an exported file is named there."""
        del folder
        return []
