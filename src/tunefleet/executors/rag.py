"""`rag_index` and `rag`: put texts into a vector database, and search it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from tunefleet.executors.base import JobExecutor, Output, missing
from tunefleet.schemas.control import BETWEEN_ITEMS
from tunefleet.schemas.job_folder import Job, JobFolder
from tunefleet.schemas.worker_link import Offer
from tunefleet.settings import TransferSettings, load
from tunefleet.spec.tasks.retrieval import INDEX


class QdrantExecutor(JobExecutor):
    """What the kinds have that work on a collection."""

    def unavailable_reason(self) -> str | None:
        """Name the libraries that are missing, without importing those that are there."""
        return missing("torch", "transformers", "sentence_transformers", "qdrant_client", extra="rag")

    def job(self, offer: Offer, *, launch: str, inputs: Mapping[str, str], gpus: Sequence[str] = ()) -> Job:
        """Return what the job's process is to run; which private addresses it may reach is the worker's setting."""
        job = super().job(offer, launch=launch, inputs=inputs, gpus=gpus)
        allowed = ",".join(load(TransferSettings).url_allow)
        return job.model_copy(update={"env": {**job.env, "TUNEFLEET_URL_ALLOW": allowed}}) if allowed else job


class RagExecutor(QdrantExecutor):
    """Searches; equal tasks share one model and one connection, and a query that two of them ask is asked once."""

    kind = "rag"
    program = "tunefleet.workloads.rag:search"
    merges: ClassVar[bool] = True

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return nothing: the hits are the result."""
        del folder  # a search leaves no files
        return []


class RagIndexExecutor(QdrantExecutor):
    """Indexes; leaves the database where no server was named."""

    kind = "rag_index"
    program = "tunefleet.workloads.rag:index"
    heeds = BETWEEN_ITEMS

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return the folder of the database, if it is not on a server."""
        path = folder.root / INDEX
        return [Output(name=path.name, kind="index", path=path)] if path.is_dir() else []
