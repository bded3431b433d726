"""The backend half of the training-agent protocol: what a job reports, and reading it back."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from tunefleet.api import request_bodies
from tunefleet.api.auth import AnyAttempt, CoreDep, Member, OwnAttempt, Reader
from tunefleet.api.routers.training_protocol import TRAINING_PREFIX
from tunefleet.api.training_errors import TrainingRoute
from tunefleet.errors import ForbiddenError
from tunefleet.orchestrator.access.permissions import AttemptActor
from tunefleet.orchestrator.training_protocol import job_logs, job_metrics, job_view, registered_jobs
from tunefleet.orchestrator.training_protocol import job_status as status
from tunefleet.schemas.training_protocol.jobs import (
    JobList,
    JobPage,
    JobRegistered,
    JobRegistration,
    JobStatus,
    StatusStored,
)
from tunefleet.schemas.training_protocol.reports import (
    Done,
    LogLines,
    LogPage,
    LogsStored,
    MetricBatch,
    MetricPage,
    MetricRows,
    ReportedPoint,
)
from tunefleet.schemas.training_protocol.training import StatusPatch

router = APIRouter(prefix=TRAINING_PREFIX, tags=["training"], route_class=TrainingRoute)

Offset = Annotated[int, Query(ge=0, le=2**31)]


def documented(model: Any) -> dict[str, Any]:
    """Describe a JSON body that a handler reads by itself."""
    return request_bodies.documented(request_bodies.json_of(model))


def same_job(who: AttemptActor, job_id: str) -> None:
    """Refuse a token that is another job's."""
    if who.task_id != job_id:
        raise ForbiddenError(f"This token is good for {who.task_id} only.")


@router.put("/local/{task_id}/metrics", openapi_extra=documented(ReportedPoint))
async def put_metrics(request: Request, core: CoreDep, who: OwnAttempt) -> Done:
    """Report one point of a job, with the job's token; the first one says that it runs. Step 0 is a step."""
    return await job_metrics.report(core, who, [await request_bodies.read(request, ReportedPoint)])


@router.post("/jobs/{task_id}/metrics", openapi_extra=documented(ReportedPoint))
async def post_metrics(request: Request, core: CoreDep, who: OwnAttempt) -> Done:
    """Report one point of a job, as `PUT /api/training/local/{task_id}/metrics` does; `loss` is `train_loss`."""
    return await job_metrics.report(core, who, [await request_bodies.read(request, ReportedPoint)])


@router.post("/local/metrics", openapi_extra=documented(MetricBatch))
async def post_batch(request: Request, core: CoreDep, who: AnyAttempt) -> Done:
    """Report up to 5,000 points of a job at once, with the job's token."""
    body = await request_bodies.read(request, MetricBatch)
    same_job(who, body.job_id)
    return await job_metrics.report(core, who, body.metrics)


@router.get("/local/{task_id}/metrics")
async def get_metrics(core: CoreDep, who: Reader, task_id: str) -> MetricRows:
    """Read the points of a job in step order, one a step; the newest 100,000 at most."""
    return await job_metrics.read(core, who, task_id)


@router.get("/local/metrics")
async def get_metrics_page(
    core: CoreDep, who: Reader, job_id: str, limit: Annotated[int, Query(ge=1, le=5000)] = 1000, offset: Offset = 0
) -> MetricPage:
    """Read a page of the points of a job in step order."""
    return await job_metrics.read_page(core, who, job_id, limit=limit, offset=offset)


@router.patch("/local/{task_id}/status", openapi_extra=documented(StatusPatch))
async def patch_status(request: Request, core: CoreDep, who: OwnAttempt) -> StatusStored:
    """Report that a job runs, is paused or has ended, with the job's token; 409 if it cannot come there."""
    return await status.report(core, who, await request_bodies.read(request, StatusPatch))


@router.get("/local/{task_id}/status")
async def get_status(core: CoreDep, who: Reader, task_id: str) -> JobStatus:
    """Say where a job stands: progress, newest and best values, trend, times, error, and a warning if it is silent."""
    return await job_view.get(core, who, task_id)


@router.post("/local/{task_id}/logs", openapi_extra=documented(LogLines))
async def post_logs(request: Request, core: CoreDep, who: OwnAttempt) -> LogsStored:
    """Report lines of a job's log, with the job's token; with `offset`, what is known already is passed over."""
    return await job_logs.report(core, who, await request_bodies.read(request, LogLines))


@router.get("/local/{task_id}/logs")
async def get_logs(
    core: CoreDep,
    who: Reader,
    task_id: str,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    offset: Annotated[int, Query(ge=-(2**31), le=2**31, description="Negative: from the end.")] = 0,
) -> LogPage:
    """Read lines of a job's log."""
    return await job_logs.read(core, who, task_id, limit=limit, offset=offset)


@router.post("/local/jobs", openapi_extra=documented(JobRegistration))
async def register(request: Request, core: CoreDep, who: Member) -> JobRegistered:
    """Register a job that its own machine runs, or change it; the answer has the token that it reports with."""
    return await registered_jobs.register(core, who, await request_bodies.read(request, JobRegistration))


@router.get("/local/jobs")
async def list_jobs(
    core: CoreDep,
    who: Reader,
    status: Annotated[str | None, Query(description="One or more, separated by commas.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
    offset: Offset = 0,
) -> JobPage:
    """List trainings, newest first: one's own, or everybody's for an admin or viewer."""
    return await registered_jobs.page(core, who, status=status, limit=limit, offset=offset)


@router.get("/jobs")
async def newest_jobs(core: CoreDep, who: Reader) -> JobList:
    """List the newest trainings."""
    return await registered_jobs.newest(core, who)
