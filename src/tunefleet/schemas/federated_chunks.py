"""Bodies of the upload guide's route that deals out a federation's data in chunks."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field, StrictInt

from tunefleet.schemas.federated import Camel, GuideRequest, JobWorker, either
from tunefleet.schemas.training_protocol.training import MAX_COUNT


class ClaimChunk(GuideRequest):
    """Body of `POST /api/training/jobs/{id}/claim-chunk`.

    Args:
        worker_id: Who wants one; who has one already gets the same again.
        completed_chunk: Number of the chunk that it has trained on to the end.
    """

    worker_id: StrictInt | str = Field(validation_alias=either("worker_id"))
    completed_chunk: int | None = Field(default=None, ge=0, lt=MAX_COUNT, validation_alias=either("completed_chunk"))


class ChunkClaimed(Camel):
    """A chunk that a worker has for a while.

    Args:
        chunk_path: Where it is fetched, below this server's address.
        lease_until: Until when; a claim by the same worker renews it.
    """

    worker: JobWorker
    chunk_index: int
    chunk_path: str
    download_url: str | None = None
    sha256: str | None = None
    rows: int | None = None
    lease_until: datetime | None = None
