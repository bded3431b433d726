"""`embedding`: a vector for each text."""

from __future__ import annotations

from tunefleet.executors.base import JobExecutor, Output
from tunefleet.executors.needs import missing
from tunefleet.schemas.control import BETWEEN_ITEMS
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.spec.tasks.retrieval import VECTORS


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
