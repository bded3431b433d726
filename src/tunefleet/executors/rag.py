"""`rag_index` and `rag`: index texts in a vector database, and search it."""

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
    """Base of the kinds that use a Qdrant collection."""

    def unavailable_reason(self) -> str | None:
        """Return which libraries are missing."""
        return missing("torch", "transformers", "sentence_transformers", "qdrant_client", extra="rag")

    def job(self, offer: Offer, *, launch: str, inputs: Mapping[str, str], gpus: Sequence[str] = ()) -> Job:
        """Return the job to launch, with the worker's list of allowed private hosts."""
        job = super().job(offer, launch=launch, inputs=inputs, gpus=gpus)
        allowed = ",".join(load(TransferSettings).url_allow)
        return job.model_copy(update={"env": {**job.env, "TUNEFLEET_URL_ALLOW": allowed}}) if allowed else job


class RagExecutor(QdrantExecutor):
    """Searches; coalesced tasks share one model and one connection, and a query of several tasks is run once."""

    kind = "rag"
    program = "tunefleet.workloads.rag:search"
    merges: ClassVar[bool] = True

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return nothing: the hits are the result."""
        del folder  # a search leaves no files
        return []


class RagIndexExecutor(QdrantExecutor):
    """Indexes; leaves the database as an output if the spec sets no server."""

    kind = "rag_index"
    program = "tunefleet.workloads.rag:index"
    supported_commands = BETWEEN_ITEMS

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return the folder of the database, if it is not on a server."""
        path = folder.root / INDEX
        return [Output(name=path.name, kind="index", path=path)] if path.is_dir() else []
