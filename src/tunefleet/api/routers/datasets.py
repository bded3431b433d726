"""Inspection of datasets before training, and the search for models."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from tunefleet.api import request_bodies
from tunefleet.api.auth import CoreDep, Member, Reader
from tunefleet.api.routers import api_router
from tunefleet.orchestrator.preflight import datasets, model_configs
from tunefleet.schemas.datasets import DatasetLook, HubModels

router = api_router(tags=["artifacts"])

Rows = Annotated[int, Query(ge=0, le=50, description="Number of rows to return.")]


@router.get("/artifacts/{artifact_id}/look")
async def look_at_artifact(
    core: CoreDep, who: Reader, artifact_id: str, path: str | None = None, rows: Rows = 5
) -> DatasetLook:
    """Inspect a dataset file: its format, first rows, lengths, and the errors of each line.

    Reads at most 64 MiB and for at most ten seconds. Without `path` it inspects the file of the training split.
    """
    return await datasets.inspect(core, who, artifact_id, path=path, rows=rows)


@router.post("/datasets/look", openapi_extra=request_bodies.documented(request_bodies.RAW))
async def look_at_beginning(
    request: Request,
    core: CoreDep,
    who: Member,
    name: Annotated[str, Query(min_length=1, max_length=500)],
    size_bytes: Annotated[int, Query(ge=0, le=2**62, description="Size of the complete file in bytes.")],
    rows: Rows = 5,
) -> DatasetLook:
    """Inspect the first bytes of a file before you upload it. Nothing is stored."""
    return await datasets.inspect_beginning(core, who, name, size_bytes, await request.body(), rows=rows)


@router.get("/hub/models")
async def search_hub(
    core: CoreDep, who: Member, search: Annotated[str, Query(min_length=1, max_length=100)]
) -> HubModels:
    """Search the Hugging Face Hub for text generation models; the server asks the Hub at `HF_ENDPOINT`."""
    return await model_configs.search_models(core, who, search)
