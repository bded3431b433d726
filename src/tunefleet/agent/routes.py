"""HTTP routes of the agent: start, pause, resume, cancel and list jobs; logs, metrics and event streams."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
from fastapi import APIRouter, Body, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from pydantic import Field
from sse_starlette import EventSourceResponse, ServerSentEvent

import tunefleet
from tunefleet.agent import bodies, intake, views
from tunefleet.agent.agent import Agent
from tunefleet.agent.jobs.job import AgentJob
from tunefleet.agent.jobs.job_run import with_trace
from tunefleet.agent.verbs import AdminCommands
from tunefleet.errors import InputError, NotFoundError, SpecError, TunefleetError
from tunefleet.schemas.base import Body as RequestBody
from tunefleet.schemas.training_protocol.training import AgentCommand, AgentOutcome, AgentVerb, TrainingJobRequest
from tunefleet.validation_errors import message

if TYPE_CHECKING:
    from tunefleet.agent.agent import Agent

# Handlers are plain functions, so that FastAPI runs them in threads: they read files.
router = APIRouter(route_class=bodies.Route)
_LOOK_S: Final = 0.3
_PAGE: Final = 500
_PING_S: Final = 15
_STATUSES: Final = {
    "spec_invalid": 422,
    "input_invalid": 422,
    "data_invalid": 422,
    "model_invalid": 422,
    "artifact_invalid": 422,
    "unauthenticated": 401,
    "forbidden": 403,
    "not_found": 404,
    "conflict": 409,
    "too_large": 413,
    "unreachable": 503,
    "machine": 507,
}
log = logging.getLogger(__name__)


def agent_of(request: Request) -> Agent:
    """Return the agent of the app."""
    agent: Agent = request.app.state.agent
    return agent


@router.get("/health")
def health(request: Request) -> dict[str, Any]:
    """Return the health of the agent and its GPUs."""
    agent = agent_of(request)
    info = agent.gpus.info()
    return {
        "status": "ok",
        "gpu_available": info["device_count"] > 0,
        "gpu_info": info,
        "active_jobs": len(agent.job_table.running()),
    }


@router.post("/api/training/execute")
def execute(request: Request, body: TrainingJobRequest) -> dict[str, Any]:
    """Queue a job; it starts when a slot is free."""
    agent = agent_of(request)
    record = intake.from_request(body, agent.settings, agent.defaults())
    sends = agent.job_table.context.spans is not None
    record = with_trace(record, request.headers.get("traceparent"), sends=sends)
    agent.admit(record)
    agent.job_table.submit(record)
    return {"job_id": record.job_id, "success": True}


@router.get("/api/training/status/{job_id}")
def status(request: Request, job_id: str) -> views.JobStatusView:
    """Return the status of a job."""
    return agent_of(request).status(job_id)


@router.post("/api/training/pause/{job_id}")
def pause(request: Request, job_id: str) -> dict[str, Any]:
    """Save a checkpoint, end the process, free the GPU."""
    _ask(request, job_id, AgentJob.ask_pause)
    return {"success": True, "message": "Training pause requested"}


@router.post("/api/training/resume/{job_id}")
def resume(
    request: Request,
    job_id: str,
    body: Annotated[dict[str, Any] | None, Body()] = None,
    checkpoint_path: Annotated[str | None, Query()] = None,
) -> dict[str, Any]:
    """Resume from the newest complete checkpoint, or from the given one."""
    chosen = (body or {}).get("checkpoint_path") or checkpoint_path
    if chosen is not None and not isinstance(chosen, str):
        raise NotNow("checkpoint_path must be a string.")
    _ask(request, job_id, lambda job: job.ask_resume(chosen))
    return {"success": True, "message": "Training resumed"}


@router.post("/api/training/cancel/{job_id}")
def cancel(request: Request, job_id: str) -> dict[str, Any]:
    """Cancel a job; its saved checkpoints stay."""
    _ask(request, job_id, AgentJob.ask_cancel)
    return {"success": True, "message": "Training cancellation requested"}


@router.get("/api/training/jobs")
def jobs(request: Request) -> dict[str, Any]:
    """List all jobs, oldest first."""
    return {"jobs": [views.row(job) for job in agent_of(request).job_table.jobs()]}


@router.get("/api/training/queue")
def queue(request: Request) -> dict[str, Any]:
    """Return running and queued jobs."""
    job_table = agent_of(request).job_table
    running = [job.job_id for job in job_table.running()]
    waiting = [job.job_id for job in job_table.queue()]
    return {
        "running_count": len(running),
        "queued_count": len(waiting),
        "running_jobs": running,
        "queued_jobs": waiting,
        "queue_active": True,
    }


def _ask(request: Request, job_id: str, verb: Any) -> None:
    """Request a state change of a job; any error is a 400, as the protocol requires."""
    try:
        verb(agent_of(request).job_table.find(job_id))
    except (NotFoundError, InputError) as error:
        raise NotNow(str(error)) from None


class VerbRequest(RequestBody):
    """Body of `POST /api/agent/commands`."""

    command: AgentVerb
    data: dict[str, Any] = Field(default_factory=dict)


@router.post("/api/agent/commands")
def command(request: Request, body: VerbRequest) -> AgentOutcome:
    """Restart, change settings, collect diagnostics or upgrade; jobs keep running."""
    verbs: AdminCommands = request.app.state.verbs
    return verbs(AgentCommand(command_id=f"local-{uuid.uuid4().hex[:12]}", command=body.command, data=body.data))


@router.get("/api/training/logs/{job_id}")
def logs(
    request: Request,
    job_id: str,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    offset: int = 0,
) -> dict[str, Any]:
    """Return lines of a job's log; a negative offset counts from the end."""
    lines, first, total = agent_of(request).job_table.find(job_id).log(offset, limit)
    return {"logs": lines, "total_lines": total, "offset": first, "limit": limit}


@router.get("/api/training/metrics/{job_id}")
def metrics(request: Request, job_id: str) -> dict[str, Any]:
    """Return the metric points of a job, in the order of their steps."""
    points = agent_of(request).job_table.find(job_id).journal().points
    return {"job_id": job_id, "metrics": [point.model_dump(mode="json", exclude_none=True) for point in points]}


@router.get("/api/training/checkpoints/{job_id}")
def checkpoints(request: Request, job_id: str) -> dict[str, Any]:
    """Return the complete checkpoints of a job, and the best one."""
    return views.checkpoints(agent_of(request).job_table.find(job_id))


@router.get("/api/training/{job_id}/errors")
def errors(request: Request, job_id: str) -> dict[str, Any]:
    """Return the errors and warnings of a job."""
    return views.errors(agent_of(request).job_table.find(job_id))


@router.get("/api/training/stream/{job_id}")
def stream(request: Request, job_id: str) -> Response:
    """Stream log lines, metric points and status of a job until it has ended."""
    agent = agent_of(request)
    return respond(follow(agent, agent.job_table.find(job_id), request.headers.get("last-event-id")))


def create_app(agent: Agent, verbs: AdminCommands) -> FastAPI:
    """Build the app."""
    app = FastAPI(
        title="Tunefleet agent",
        version=tunefleet.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    key = agent.settings.key
    app.state.agent = agent
    app.state.verbs = verbs
    app.state.key = key.get_secret_value() if key is not None else None
    app.state.origins = frozenset(agent.settings.cors_origins)
    app.include_router(router)
    install(app)
    if agent.settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(agent.settings.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key"],
            allow_private_network=True,
        )
    return app


def respond(events: AsyncIterator[ServerSentEvent]) -> Response:
    """Return an event stream response."""
    # Periodic comments keep proxies from closing an idle stream.
    return EventSourceResponse(events, ping=_PING_S, send_timeout=60)


async def follow(agent: Agent, job: AgentJob, last_id: str | None) -> AsyncIterator[ServerSentEvent]:
    """Stream a job until it has ended and everything is sent, or the agent stops."""
    points, lines = _position(last_id)
    shown = ""
    while not agent.stopping.is_set():
        final = job.record.state.final
        status = (await asyncio.to_thread(agent.status, job.job_id)).model_dump_json()
        if status != shown:
            shown = status
            yield ServerSentEvent(status, event="status", id=f"{points}:{lines}")
        series = (await asyncio.to_thread(job.journal)).points
        # A resume removes the points after its checkpoint.
        points = min(points, len(series))
        for point in series[points:]:
            points += 1
            yield ServerSentEvent(point.model_dump_json(exclude_none=True), event="metric", id=f"{points}:{lines}")
        page, first, total = await asyncio.to_thread(job.log, lines, _PAGE)
        if page:
            lines = first + len(page)
            yield ServerSentEvent(orjson.dumps({"lines": page}).decode(), event="log", id=f"{points}:{lines}")
        if final and lines >= total:
            return
        if len(page) < _PAGE:
            await asyncio.sleep(_LOOK_S)


def _position(last_id: str | None) -> tuple[int, int]:
    first, _, second = (last_id or "").partition(":")
    return (int(first), int(second)) if first.isdigit() and second.isdigit() else (0, 0)


class NotNow(TunefleetError):
    """The job does not exist, or its state does not allow the request (the protocol uses status 400 for both)."""

    code = "not_now"


def install(app: FastAPI) -> None:
    """Install error handlers, so that every error response has a `detail`."""

    @app.exception_handler(TunefleetError)
    async def ours(_: Request, error: TunefleetError) -> JSONResponse:
        status = 400 if isinstance(error, NotNow) else _STATUSES.get(error.code, 500)
        if status >= 500 or error.detail:
            log.warning("%s: %s (%s)", error.code, error.message, error.detail or "no detail")
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
        return JSONResponse({"detail": _detail(error)}, status, headers=headers)

    @app.exception_handler(RequestValidationError)
    async def unreadable(_: Request, error: RequestValidationError) -> JSONResponse:
        # Without the input: it may contain tokens, or values that JSON cannot represent.
        detail = [
            {"loc": each["loc"], "msg": message(each, quoted=False), "type": each["type"]} for each in error.errors()
        ]
        return JSONResponse({"detail": detail}, 422)

    @app.exception_handler(RecursionError)
    async def too_deep(_: Request, __: RecursionError) -> JSONResponse:
        return JSONResponse({"detail": "The request is nested too deeply."}, 422)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, _: Exception) -> JSONResponse:
        # Starlette raises the exception again after this response, so that uvicorn logs its traceback.
        log.error("Unexpected error in %s %s.", request.method, request.url.path)
        return JSONResponse({"detail": "Unexpected error. The traceback is in the agent's log."}, 500)


def _detail(error: TunefleetError) -> object:
    """Return the message; for an invalid body a list of errors in FastAPI's format."""
    if not isinstance(error, SpecError):
        return str(error)
    return [
        {
            # `config (spec.model)`: a field of the spec that no field of the config was translated to.
            "loc": ["body", *([fault.path] if " (" in fault.path else fault.path.split("."))],
            "msg": f"{fault.message} ({fault.hint})" if fault.hint else fault.message,
            "type": "value_error",
        }
        for fault in error.faults
    ]
