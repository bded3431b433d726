"""`inference`: answers prompts with a model, and several equal tasks in one run."""

from __future__ import annotations

from typing import ClassVar

from tunefleet.executors.base import JobExecutor, Output, missing
from tunefleet.schemas.control import BETWEEN_ITEMS
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.spec.tasks.retrieval import VECTORS


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


class EmbeddingExecutor(JobExecutor):
    """Makes vectors; leaves them in one file."""

    kind = "embedding"
    program = "tunefleet.workloads.embedding:main"
    heeds = BETWEEN_ITEMS

    def unavailable_reason(self) -> str | None:
        """Name the libraries that are missing, without importing those that are there."""
        return missing("torch", "transformers", "sentence_transformers", "pyarrow", extra="rag")

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return the file with the vectors."""
        file = folder.root / VECTORS
        return [Output(name=file.name, kind="dataset", path=file)] if file.is_file() else []


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
