"""Reports of a running attempt, and what users read of them: journal, metrics, log."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Query, Request, Response

from tunefleet.api import request_bodies, sse
from tunefleet.api.auth import CoreDep, OwnAttempt, Reader
from tunefleet.api.query_params import names as split_names
from tunefleet.api.routers import api_router
from tunefleet.orchestrator.telemetry import ingest, logs
from tunefleet.orchestrator.telemetry import series as series_service
from tunefleet.schemas.api import LogView, MetricsView
from tunefleet.schemas.ui import SeriesView
from tunefleet.schemas.worker_link import Cursor, JournalBatch

router = api_router(prefix="/tasks/{task_id}", tags=["reports"])

Offset = Annotated[int, Query(ge=0, le=2**62)]


@router.post(
    "/journal", response_model=Cursor, openapi_extra=request_bodies.documented(request_bodies.json_of(JournalBatch))
)
async def append_journal(request: Request, core: CoreDep, attempt: OwnAttempt) -> Response:
    """Append journal records. Records that the server already has are ignored; a gap returns 409 with the cursor."""
    return request_bodies.answer(await ingest.ingest(core, attempt, await request_bodies.read(request, JournalBatch)))


@router.put("/log", response_model=Cursor, openapi_extra=request_bodies.documented(request_bodies.RAW))
async def append_log(request: Request, core: CoreDep, attempt: OwnAttempt, offset: Offset) -> Response:
    """Append log bytes at an offset. Overlapping bytes are ignored; a gap returns 409 with the cursor."""
    return request_bodies.answer(await logs.append(core, attempt, offset, await request.body()))


@router.get("/metrics", response_model=MetricsView)
async def read_metrics(
    core: CoreDep,
    who: Reader,
    task_id: str,
    series: str = "train",
    names: Annotated[
        str | None, Query(description="Comma-separated metric names. Default: all.", examples=["loss"])
    ] = None,
    max_points: Annotated[
        int | None, Query(ge=2, le=100_000, description="Maximum number of points; more are downsampled.")
    ] = None,
    after_step: Annotated[int | None, Query(ge=-(2**62), le=2**62)] = None,
    to_step: Annotated[int | None, Query(ge=-(2**62), le=2**62, description="Last step to return.")] = None,
) -> Response:
    """Retrieve the points of a series in step order. Downsampling to `max_points` preserves the shape of the curve."""
    found = await series_service.read(
        core, who, task_id, series=series, names=split_names(names), max_points=max_points, after_step=after_step,
        to_step=to_step,
    )  # fmt: skip
    return Response(found, media_type="application/json")


@router.get("/series")
async def list_series(core: CoreDep, who: Reader, task_id: str) -> list[SeriesView]:
    """List the series of a task, with the names of their values."""
    return await series_service.names_of(core, who, task_id)


@router.get("/log")
async def read_log(
    core: CoreDep,
    who: Reader,
    task_id: str,
    offset: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    tail_bytes: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    limit_bytes: Annotated[int, Query(ge=1, le=4 << 20)] = 65536,
) -> LogView:
    """Retrieve a part of a task's log: from an offset, or its end."""
    return await logs.read(core, who, task_id, offset=offset, tail_bytes=tail_bytes, limit_bytes=limit_bytes)


@router.get("/log/stream", response_class=sse.EventStream)
async def follow_log(
    request: Request,
    core: CoreDep,
    who: Reader,
    task_id: str,
    offset: Annotated[int, Query(ge=0, le=2**62)] = 0,
    last_event_id: Annotated[int | None, Header(ge=0, le=2**62)] = None,
) -> Response:
    """Stream a task's log. `log` events contain a `LogView` and have the next offset as id; `eos` marks the end."""
    start = offset if last_event_id is None else last_event_id
    first = await logs.read(core, who, task_id, offset=start)
    return sse.respond(request, sse.follow_log(core, who, task_id, first))
