"""`chat`: a session in which a model is talked with."""

from __future__ import annotations

from tunefleet.executors.base import JobExecutor, Output
from tunefleet.executors.needs import missing
from tunefleet.schemas.job_folder import JobFolder


class ChatExecutor(JobExecutor):
    """Holds a model ready and answers turns."""

    kind = "chat"
    program = "tunefleet.workloads.chat:main"
    engine = True
    talks = True

    def unavailable_reason(self) -> str | None:
        """Name the libraries that are missing, without importing those that are there."""
        return missing("torch", "transformers", "peft", "accelerate", extra="train")

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return nothing: a conversation leaves no files."""
        del folder
        return []
