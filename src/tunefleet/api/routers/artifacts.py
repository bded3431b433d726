"""Artifacts: files that tasks produce and users upload; inspection of datasets, and the search for models."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import Query, Request, Response
from pydantic import BaseModel, Field
from starlette.concurrency import iterate_in_threadpool
from starlette.responses import StreamingResponse

from tunefleet.api import file_transfer, request_bodies
from tunefleet.api.auth import CoreDep, Member, MemberOrAttempt, Reader, ReaderOrAttempt
from tunefleet.api.query_params import Cursor, Limit
from tunefleet.api.routers import api_router
from tunefleet.artifacts import BlobStore
from tunefleet.errors import NotFoundError
from tunefleet.orchestrator.preflight import datasets, model_configs
from tunefleet.orchestrator.storage import artifacts
from tunefleet.schemas.api import ArtifactCreate, ArtifactDetail, ArtifactView, FileEntry, Page
from tunefleet.schemas.datasets import DatasetLook, HubModels

router = api_router(tags=["artifacts"])
Rows = Annotated[int, Query(ge=0, le=50, description="Number of rows to return.")]
_BLOCK: Final = tarfile.BLOCKSIZE
_END: Final = b"\0" * (2 * _BLOCK)


class ArtifactFilter(BaseModel):
    """Filters of the artifact list. Separate several values with commas."""

    limit: Limit = 50
    cursor: Cursor = None
    task_id: str | None = None
    kind: Annotated[str | None, Field(examples=["adapter"])] = None
    name: str | None = None
    owner: str | None = None
    origin: Annotated[bool, Field(description="Include the task of each artifact, and what it read.")] = False


@router.post("/artifacts", status_code=201)
async def publish(
    core: CoreDep, who: MemberOrAttempt, artifact: ArtifactCreate, task_id: str | None = None
) -> ArtifactView:
    """Publish an artifact whose files are already stored. Publishing the same content again returns that artifact."""
    return await artifacts.publish(core, who, artifact, task_id=task_id)


@router.get("/artifacts")
async def list_artifacts(
    core: CoreDep,
    who: Reader,
    wanted: Annotated[ArtifactFilter, Query()],
) -> Page[ArtifactView]:
    """List artifacts, newest first."""
    return await artifacts.list_(core, who, **wanted.model_dump())


@router.get("/tasks/{task_id}/artifacts")
async def list_task_artifacts(
    core: CoreDep,
    who: Reader,
    task_id: str,
    limit: Limit = 50,
    cursor: Cursor = None,
    kind: str | None = None,
    name: str | None = None,
) -> Page[ArtifactView]:
    """List the artifacts that a task produced. Separate several filter values with commas."""
    return await artifacts.list_(core, who, task_id=task_id, limit=limit, cursor=cursor, kind=kind, name=name)


@router.get("/artifacts/{artifact_id}")
async def get_artifact(core: CoreDep, who: ReaderOrAttempt, artifact_id: str) -> ArtifactDetail:
    """Retrieve an artifact and its files, by id, name or digest."""
    return await artifacts.get(core, who, artifact_id)


@router.head("/artifacts/{artifact_id}/archive", include_in_schema=False)
@router.get(
    "/artifacts/{artifact_id}/archive",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def get_archive(request: Request, core: CoreDep, who: Reader, artifact_id: str) -> Response:
    """Download all files of an artifact as an uncompressed tar archive."""
    artifact = await artifacts.get(core, who, artifact_id)
    at, name = artifact.created_at.timestamp(), artifact.name.rpartition("/")[2] or artifact.id
    return _send_tar(core.blobs, name, artifact.files, at=at, body=request.method == "GET")


@router.delete("/artifacts/{artifact_id}", status_code=204)
async def remove_artifact(core: CoreDep, who: Member, artifact_id: str) -> None:
    """Delete an artifact. Its files are deleted when nothing else references them."""
    await artifacts.remove(core, who, artifact_id)


@router.head("/artifacts/{artifact_id}/files/{path:path}", include_in_schema=False)
@router.get(
    "/artifacts/{artifact_id}/files/{path:path}",
    response_class=file_transfer.BlobResponse,
    responses=file_transfer.ELSEWHERE,
)
async def get_file(request: Request, core: CoreDep, who: Reader, artifact_id: str, path: str) -> Response:
    """Download one file of an artifact. Supports `HEAD`, `Range` and `If-None-Match`."""
    artifact = await artifacts.get(core, who, artifact_id)
    entry = next((file for file in artifact.files if file.path == path), None)
    if entry is None:
        raise NotFoundError(f"Artifact {artifact.name} has no file {path!r}.")
    name = path.rpartition("/")[2]
    return await file_transfer.send(request, core.blobs, entry.digest, filename=name, size_bytes=entry.size_bytes)


def _send_tar(blobs: BlobStore, name: str, files: Sequence[FileEntry], *, at: float, body: bool = True) -> Response:
    """Respond with files as `NAME.tar`, in a folder of that name."""
    # Weights do not compress; and without compression the length is known before the first byte, so that a browser can
    # show progress.
    heads = [_head(f"{name}/{file.path}", file.size_bytes, at) for file in files]
    length = sum(len(head) + _whole(file.size_bytes) for head, file in zip(heads, files, strict=True)) + len(_END)
    headers = {
        "Content-Length": str(length),
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(f'{name}.tar', safe='')}",
        "Cache-Control": "private, no-cache",
    }
    if not body:
        return Response(headers=headers, media_type="application/x-tar")
    pieces = iterate_in_threadpool(_pieces(blobs, heads, files))
    return StreamingResponse(pieces, headers=headers, media_type="application/x-tar")


def _pieces(blobs: BlobStore, heads: Sequence[bytes], files: Sequence[FileEntry]) -> Iterator[bytes]:
    for head, file in zip(heads, files, strict=True):
        yield head
        yield from blobs.pieces(file.digest)
        padding = _whole(file.size_bytes) - file.size_bytes
        if padding:
            yield b"\0" * padding
    yield _END


def _head(path: str, size: int, at: float) -> bytes:
    member = tarfile.TarInfo(path)
    member.size, member.mtime, member.mode = size, int(at), 0o644
    return member.tobuf(tarfile.PAX_FORMAT)


def _whole(size: int) -> int:
    """Return the size of a file in complete tar blocks."""
    return -(-size // _BLOCK) * _BLOCK


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
