"""The Worker Guide's own paths: `/healthz`, `/workers` and `/metrics`, without `/api/v1`."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Request, Response

from tunefleet.api import auth, problem_details
from tunefleet.api.auth import Admin, CoreDep, Reader
from tunefleet.api.query_params import refuse_unknown
from tunefleet.api.routers.workers import set_elastic
from tunefleet.orchestrator.compat import worker_guide
from tunefleet.orchestrator.observability import gauges
from tunefleet.schemas.api import Problem
from tunefleet.schemas.fleet import ElasticRequest, ElasticView
from tunefleet.schemas.worker_guide import GuideWorker, Health, Snapshot

router = APIRouter(dependencies=[Depends(refuse_unknown)])
_PUBLIC: dict[str, Any] = {"security": []}
_TEXTS: Final = frozenset({"*/*", "text/*", "text/plain", "application/openmetrics-text"})
_FORMS: dict[int | str, dict[str, Any]] = {
    200: {"content": {kind: {"schema": {"type": "string"}} for kind in ("text/plain", "application/openmetrics-text")}},
    406: {"model": Problem},
}


@router.get("/healthz", tags=["server"], openapi_extra=_PUBLIC)
async def healthz_of_guide() -> Health:
    """Check that the server is running."""
    return Health()


@router.get("/workers", tags=["workers"])
async def list_workers_of_guide(core: CoreDep, who: Reader) -> list[GuideWorker]:
    """List all workers in the format of the Worker Guide. `/api/v1/workers` returns more fields, in pages."""
    return await worker_guide.list_workers(core, who)


@router.get("/workers/{worker_id}", tags=["workers"])
async def get_worker_of_guide(core: CoreDep, who: Reader, worker_id: str) -> GuideWorker:
    """Retrieve a worker in the format of the Worker Guide."""
    return await worker_guide.get_worker(core, who, worker_id)


@router.post(
    "/workers/{worker_id}/elastic", tags=["workers"], response_model=ElasticView, responses={400: {"model": Problem}}
)
async def set_elastic_of_guide(
    core: CoreDep, who: Admin, worker_id: str, request: ElasticRequest
) -> ElasticView | Response:
    """Activate a worker or put it on standby. Same as the route under `/api/v1`."""
    return await set_elastic(core, who, worker_id, request)


@router.get("/metrics", tags=["server"], response_model=Snapshot, responses=_FORMS)
async def metrics_of_guide(
    request: Request,
    core: CoreDep,
    accept: Annotated[
        str, Header(description="`application/json` returns the snapshot, otherwise Prometheus text format.")
    ] = "*/*",
) -> Snapshot | Response:
    """Retrieve the server's metrics: for Prometheus, or as the guide's snapshot with `Accept: application/json`."""
    wanted = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    if wanted & {"application/json", "application/*"}:
        return await worker_guide.snapshot(core, await auth.reader(request))
    if not wanted & _TEXTS:
        return problem_details.problem(
            "not_acceptable",
            f"/metrics supports the Prometheus text format and application/json, not {accept}.",
            hint="Send 'Accept: text/plain' or 'Accept: application/json'.",
        )
    if core.settings.metrics != "open":
        await auth.reader(request)
    body, kind = await gauges.written(core, accept)
    return Response(body, media_type=kind)
