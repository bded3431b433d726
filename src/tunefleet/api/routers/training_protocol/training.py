"""Backend of the training-agent protocol: job reports, and reading them back."""

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
    """Describe a JSON body that a handler parses itself."""
    return request_bodies.documented(request_bodies.json_of(model))


def same_job(who: AttemptActor, job_id: str) -> None:
    """Refuse a token of another job."""
    if who.task_id != job_id:
        raise ForbiddenError(f"This token is valid only for job {who.task_id}.")


@router.put("/local/{task_id}/metrics", openapi_extra=documented(ReportedPoint))
async def put_metrics(request: Request, core: CoreDep, who: OwnAttempt) -> Done:
    """Report one metrics point of a job, with the job's token. The first point marks the job as running."""
    return await job_metrics.report(core, who, [await request_bodies.read(request, ReportedPoint)])


@router.post("/jobs/{task_id}/metrics", openapi_extra=documented(ReportedPoint))
async def post_metrics(request: Request, core: CoreDep, who: OwnAttempt) -> Done:
    """Report one point of a job, like `PUT /api/training/local/{task_id}/metrics`. `loss` means `train_loss`."""
    return await job_metrics.report(core, who, [await request_bodies.read(request, ReportedPoint)])


@router.post("/local/metrics", openapi_extra=documented(MetricBatch))
async def post_batch(request: Request, core: CoreDep, who: AnyAttempt) -> Done:
    """Report up to 5,000 points of a job in one request, with the job's token."""
    body = await request_bodies.read(request, MetricBatch)
    same_job(who, body.job_id)
    return await job_metrics.report(core, who, body.metrics)


@router.get("/local/{task_id}/metrics")
async def get_metrics(core: CoreDep, who: Reader, task_id: str) -> MetricRows:
    """List the points of a job in step order, one per step, up to the newest 100,000."""
    return await job_metrics.read(core, who, task_id)


@router.get("/local/metrics")
async def get_metrics_page(
    core: CoreDep, who: Reader, job_id: str, limit: Annotated[int, Query(ge=1, le=5000)] = 1000, offset: Offset = 0
) -> MetricPage:
    """List the points of a job in step order, in pages."""
    return await job_metrics.read_page(core, who, job_id, limit=limit, offset=offset)


@router.patch("/local/{task_id}/status", openapi_extra=documented(StatusPatch))
async def patch_status(request: Request, core: CoreDep, who: OwnAttempt) -> StatusStored:
    """Report that a job is running, paused or has ended, with the job's token. An invalid transition returns 409."""
    return await status.report(core, who, await request_bodies.read(request, StatusPatch))


@router.get("/local/{task_id}/status")
async def get_status(core: CoreDep, who: Reader, task_id: str) -> JobStatus:
    """Retrieve a job's status: progress, latest and best values, trend, times, error, and a warning if it is silent."""
    return await job_view.get(core, who, task_id)


@router.post("/local/{task_id}/logs", openapi_extra=documented(LogLines))
async def post_logs(request: Request, core: CoreDep, who: OwnAttempt) -> LogsStored:
    """Report lines of a job's log, with the job's token. With `offset`, lines that are already known are skipped."""
    return await job_logs.report(core, who, await request_bodies.read(request, LogLines))


@router.get("/local/{task_id}/logs")
async def get_logs(
    core: CoreDep,
    who: Reader,
    task_id: str,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    offset: Annotated[
        int, Query(ge=-(2**31), le=2**31, description="First line to return. Negative: from the end.")
    ] = 0,
) -> LogPage:
    """List lines of a job's log."""
    return await job_logs.read(core, who, task_id, limit=limit, offset=offset)


@router.post("/local/jobs", openapi_extra=documented(JobRegistration))
async def register(request: Request, core: CoreDep, who: Member) -> JobRegistered:
    """Register or update a job that runs on its own machine. The response contains the token for its reports."""
    return await registered_jobs.register(core, who, await request_bodies.read(request, JobRegistration))


@router.get("/local/jobs")
async def list_jobs(
    core: CoreDep,
    who: Reader,
    status: Annotated[str | None, Query(description="Comma-separated statuses.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
    offset: Offset = 0,
) -> JobPage:
    """List training jobs, newest first: your own, or everyone's for admins and viewers."""
    return await registered_jobs.page(core, who, status=status, limit=limit, offset=offset)


@router.get("/jobs")
async def newest_jobs(core: CoreDep, who: Reader) -> JobList:
    """List the newest training jobs."""
    return await registered_jobs.newest(core, who)
