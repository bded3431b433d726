"""Job control of the training-agent protocol: control, resume, parameters, errors, predictions, start."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from sse_starlette import ServerSentEvent

from tunefleet.api import request_bodies, sse
from tunefleet.api.auth import AnyAttempt, CoreDep, Member, Reader
from tunefleet.api.routers.training_protocol import TRAINING_PREFIX
from tunefleet.api.routers.training_protocol.training import Offset, documented, same_job
from tunefleet.api.training_errors import TrainingRoute
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.telemetry import logs
from tunefleet.orchestrator.training_protocol import error_report, job_control, predictions
from tunefleet.schemas.training_protocol.jobs import (
    ControlAction,
    ControlDone,
    FailureAnalysis,
    JobErrors,
    ParametersUpdated,
    ParameterUpdate,
    ResumedJob,
    ResumeJob,
    Started,
    StartJob,
)
from tunefleet.schemas.training_protocol.reports import (
    Done,
    PredictionBatch,
    PredictionEpochs,
    PredictionPage,
    PredictionTrends,
)

router = APIRouter(prefix=TRAINING_PREFIX, tags=["training"], route_class=TrainingRoute)

_LOOK_S = 10.0


@router.post("/local/{task_id}/control", openapi_extra=documented(ControlAction))
async def control_job(request: Request, core: CoreDep, who: Member, task_id: str) -> ControlDone:
    """Cancel, pause or resume a job. `result` contains its new state."""
    return await job_control.control(core, who, task_id, await request_bodies.read(request, ControlAction))


@router.post("/local/{task_id}/resume", openapi_extra=documented(ResumeJob))
async def resume_job(request: Request, core: CoreDep, who: Member, task_id: str) -> ResumedJob:
    """Resume a failed or cancelled job as a new job, optionally with changed parameters."""
    body = await request_bodies.read(request, ResumeJob) if await request.body() else ResumeJob()
    return await job_control.resume(core, who, task_id, body)


@router.patch("/local/{task_id}/update-params", openapi_extra=documented(ParameterUpdate))
async def update_params(request: Request, core: CoreDep, who: Member, task_id: str) -> ParametersUpdated:
    """Change parameters of a running job. `fields` reports when each change takes effect."""
    return await job_control.update_params(core, who, task_id, await request_bodies.read(request, ParameterUpdate))


@router.get("/local/{task_id}/errors")
async def job_errors(core: CoreDep, who: Reader, task_id: str) -> JobErrors:
    """List the errors of a job, grouped, with its parsed traceback."""
    return await error_report.errors(core, who, task_id)


@router.get("/local/{task_id}/analyze-failure")
async def analyze_failure(core: CoreDep, who: Reader, task_id: str) -> FailureAnalysis:
    """Analyze with rules why a job failed, and suggest configuration changes."""
    return await error_report.analyze(core, who, task_id)


@router.post("/local/predictions", openapi_extra=documented(PredictionBatch))
async def post_predictions(request: Request, core: CoreDep, who: AnyAttempt) -> Done:
    """Report generated texts for samples, with the job's token."""
    body = await request_bodies.read(request, PredictionBatch)
    same_job(who, body.job_id)
    return await predictions.report(core, who, body.predictions)


@router.get("/predictions/{task_id}")
async def get_predictions(
    core: CoreDep,
    who: Reader,
    task_id: str,
    epoch: float | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    offset: Offset = 0,
) -> PredictionPage:
    """List the predictions of a job in the order of their creation."""
    return await predictions.page(core, who, task_id, epoch=epoch, limit=limit, offset=offset)


@router.get("/predictions/{task_id}/epochs")
async def prediction_epochs(core: CoreDep, who: Reader, task_id: str) -> PredictionEpochs:
    """List the epochs and steps that have predictions."""
    return await predictions.epochs(core, who, task_id)


@router.get("/predictions/{task_id}/trends")
async def prediction_trends(core: CoreDep, who: Reader, task_id: str) -> PredictionTrends:
    """List the mean scores of the predictions by step."""
    return await predictions.trends(core, who, task_id)


@router.get("/predictions/{task_id}/stream", response_class=sse.EventStream)
async def follow_predictions(
    request: Request,
    core: CoreDep,
    who: Reader,
    task_id: str,
    last_event_id: Annotated[str | None, Header(pattern=r"^\d{1,9}:\d{1,15}$")] = None,
) -> Response:
    """Stream a job's predictions. Each one is a `prediction` event; `eos` follows the last one."""
    launch, _, seq = (last_event_id or "").partition(":")
    mark = (int(launch), int(seq)) if last_event_id else None
    job_id, _, _ = await predictions.after(core, who, task_id, (2**31, 0))
    return sse.respond(request, _follow(core, who, job_id, mark))


async def _follow(
    core: ServerContext, who: Actor, job_id: str, mark: predictions.Mark | None
) -> AsyncIterator[ServerSentEvent]:
    topic = logs.topic(job_id)
    while not core.signals.closed:
        seen = core.signals.version(topic)
        _, found, final = await predictions.after(core, who, job_id, mark)
        for at, view in found:
            yield ServerSentEvent(json.dumps(view), event="prediction", id=f"{at[0]}:{at[1]}")
        mark = found[-1][0] if found else mark
        if final:
            yield ServerSentEvent("{}", event="eos")
            return
        if len(found) < predictions.PIECE:
            await core.signals.wait(topic, _LOOK_S, seen)


@router.post("/local/start", openapi_extra=documented(StartJob))
async def start(request: Request, core: CoreDep, who: Member) -> Started:
    """Submit an earlier workflow again, by its id or name."""
    return await job_control.start(core, who, await request_bodies.read(request, StartJob))
