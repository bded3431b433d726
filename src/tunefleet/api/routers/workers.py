"""Workers: the machines that run tasks."""

from __future__ import annotations

from typing import Annotated, Final, get_args

from fastapi import Query, Response
from pydantic import AwareDatetime

from tunefleet.api import problem_details
from tunefleet.api.auth import Admin, CoreDep, Reader
from tunefleet.api.query_params import Cursor, Limit, one_of
from tunefleet.api.routers import api_router
from tunefleet.errors import ConflictError
from tunefleet.orchestrator.scheduling import autoscaling
from tunefleet.orchestrator.telemetry import worker_load
from tunefleet.orchestrator.workers import worker_commands, workers
from tunefleet.schemas.api import CommandRequest, CommandView, Page, Problem
from tunefleet.schemas.fleet import ElasticRequest, ElasticView, WorkerHistory, WorkerView

router = api_router(prefix="/workers", tags=["workers"])

_STATUSES: Final = get_args(WorkerView.model_fields["status"].annotation)
Status = Annotated[str | None, one_of(_STATUSES), Query(description=f"Comma-separated: {', '.join(_STATUSES)}.")]

Hidden = Annotated[
    bool, Query(description="Include workers that have been offline or lost for `TUNEFLEET_HIDE_WORKERS_AFTER_S`.")
]

Moment = Annotated[
    AwareDatetime | None, Query(description="A time with its time zone.", examples=["2026-01-31T12:00:00Z"])
]
Wait = Annotated[
    float, Query(ge=0, le=worker_commands.MAX_WAIT_S, description="How long to wait for the outcome, in seconds.")
]


@router.get("")
async def list_workers(
    core: CoreDep, who: Reader, limit: Limit = 100, cursor: Cursor = None, status: Status = None, hidden: Hidden = False
) -> Page[WorkerView]:
    """List workers with their resources and running tasks."""
    return await workers.list_(core, who, limit=limit, cursor=cursor, status=status, hidden=hidden)


@router.get("/{worker_id}")
async def get_worker(core: CoreDep, who: Reader, worker_id: str) -> WorkerView:
    """Retrieve a worker."""
    return await workers.get(core, who, worker_id)


@router.get("/{worker_id}/history")
async def get_worker_history(
    core: CoreDep,
    who: Reader,
    worker_id: str,
    since: Moment = None,
    until: Moment = None,
    max_points: Annotated[
        int, Query(ge=1, le=5000, description="Maximum number of points; more are downsampled.")
    ] = 500,
) -> WorkerHistory:
    """Retrieve the load of a worker over the last day: memory, disk, CPU load and GPUs."""
    start, end = (None if at is None else at.timestamp() for at in (since, until))
    return await worker_load.history(core, who, worker_id, since=start, until=end, most=max_points)


@router.post("/{worker_id}/commands", status_code=202)
async def tell_worker(core: CoreDep, who: Admin, worker_id: str, request: CommandRequest) -> CommandView:
    """Send `restart`, `update-config`, `collect-diagnostics` or `upgrade` to a worker. Its jobs keep running."""
    return await worker_commands.send(core, who, worker_id, request)


@router.get("/{worker_id}/commands/{command_id}")
async def get_worker_command(
    core: CoreDep, who: Admin, worker_id: str, command_id: str, wait_s: Wait = 0.0
) -> CommandView:
    """Retrieve a worker command and its outcome. Diagnostics are in `result`."""
    return await worker_commands.get(core, who, worker_id, command_id, wait_s=wait_s)


@router.post("/{worker_id}/cordon")
async def cordon_worker(core: CoreDep, who: Admin, worker_id: str) -> WorkerView:
    """Cordon a worker: it gets no new tasks. Its running tasks continue."""
    return await worker_commands.cordon(core, who, worker_id)


@router.post("/{worker_id}/uncordon")
async def uncordon_worker(core: CoreDep, who: Admin, worker_id: str) -> WorkerView:
    """Uncordon a worker: it gets tasks again. Also cancels a drain that has not finished."""
    return await worker_commands.uncordon(core, who, worker_id)


@router.post("/{worker_id}/drain")
async def drain_worker(core: CoreDep, who: Admin, worker_id: str) -> WorkerView:
    """Drain a worker: it finishes its tasks, then leaves. It stays cordoned until you uncordon it."""
    return await worker_commands.drain(core, who, worker_id)


@router.post("/{worker_id}/elastic", response_model=ElasticView, responses={400: {"model": Problem}})
async def set_elastic(core: CoreDep, who: Admin, worker_id: str, request: ElasticRequest) -> ElasticView | Response:
    """Activate a worker or put it on standby, as elastic scaling does. Scaling continues from there."""
    try:
        return await autoscaling.set_enabled(core, who, worker_id, enabled=request.enabled)
    except ConflictError as error:
        # v1 clients expect 400 here.
        return problem_details.problem(error.code, error.message, status=400, hint=error.hint)


@router.delete("/{worker_id}", status_code=204)
async def remove_worker(core: CoreDep, who: Admin, worker_id: str) -> None:
    """Delete a worker that is permanently gone."""
    await workers.remove(core, who, worker_id)
