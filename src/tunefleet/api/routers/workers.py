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
from tunefleet.orchestrator.workers import cordons, worker_commands, workers
from tunefleet.schemas.api import CommandRequest, CommandView, Page, Problem
from tunefleet.schemas.fleet import ElasticRequest, ElasticView, WorkerHistory, WorkerView

router = api_router(prefix="/workers", tags=["workers"])

_STATUSES: Final = get_args(WorkerView.model_fields["status"].annotation)
Status = Annotated[
    str | None, one_of(_STATUSES), Query(description=f"Of {', '.join(_STATUSES)}; several separated by commas.")
]

Moment = Annotated[AwareDatetime | None, Query(description="A time with its zone.", examples=["2026-01-31T12:00:00Z"])]
Wait = Annotated[
    float, Query(ge=0, le=worker_commands.MAX_WAIT_S, description="Hold the answer until it has its outcome.")
]


@router.get("")
async def list_workers(
    core: CoreDep, who: Reader, limit: Limit = 100, cursor: Cursor = None, status: Status = None
) -> Page[WorkerView]:
    """List workers with what they have and what they run."""
    return await workers.list_(core, who, limit=limit, cursor=cursor, status=status)


@router.get("/{worker_id}")
async def get_worker(core: CoreDep, who: Reader, worker_id: str) -> WorkerView:
    """Show a worker."""
    return await workers.get(core, who, worker_id)


@router.get("/{worker_id}/history")
async def get_worker_history(
    core: CoreDep,
    who: Reader,
    worker_id: str,
    since: Moment = None,
    until: Moment = None,
    max_points: Annotated[int, Query(ge=1, le=5000, description="Thinned to so many at most.")] = 500,
) -> WorkerHistory:
    """Show how busy a worker was: memory, disk, load and GPUs, of the last day."""
    start, end = (None if at is None else at.timestamp() for at in (since, until))
    return await worker_load.history(core, who, worker_id, since=start, until=end, most=max_points)


@router.post("/{worker_id}/commands", status_code=202)
async def tell_worker(core: CoreDep, who: Admin, worker_id: str, request: CommandRequest) -> CommandView:
    """Tell a worker to `restart`, `update-config`, `collect-diagnostics` or `upgrade`; its jobs go on."""
    return await worker_commands.ask(core, who, worker_id, request)


@router.get("/{worker_id}/commands/{command_id}")
async def get_worker_command(
    core: CoreDep, who: Admin, worker_id: str, command_id: str, wait_s: Wait = 0.0
) -> CommandView:
    """Say what became of it; diagnostics are in `result`."""
    return await worker_commands.get(core, who, worker_id, command_id, wait_s=wait_s)


@router.post("/{worker_id}/cordon")
async def cordon_worker(core: CoreDep, who: Admin, worker_id: str) -> WorkerView:
    """Give a worker nothing new; what it has goes on."""
    return await cordons.cordon(core, who, worker_id)


@router.post("/{worker_id}/uncordon")
async def uncordon_worker(core: CoreDep, who: Admin, worker_id: str) -> WorkerView:
    """Give a worker tasks again; takes back a drain that has not finished."""
    return await cordons.uncordon(core, who, worker_id)


@router.post("/{worker_id}/drain")
async def drain_worker(core: CoreDep, who: Admin, worker_id: str) -> WorkerView:
    """Let a worker finish what it has, and then leave; it stays cordoned until it is uncordoned."""
    return await cordons.drain(core, who, worker_id)


@router.post("/{worker_id}/elastic", response_model=ElasticView, responses={400: {"model": Problem}})
async def set_elastic(core: CoreDep, who: Admin, worker_id: str, request: ElasticRequest) -> ElasticView | Response:
    """Call a worker back, or send it to rest as elastic scaling does; the scaling goes on from there."""
    try:
        return await autoscaling.set_enabled(core, who, worker_id, enabled=request.enabled)
    except ConflictError as error:
        # v1's word for it.
        return problem_details.problem(error.code, error.message, status=400, hint=error.hint)


@router.delete("/{worker_id}", status_code=204)
async def remove_worker(core: CoreDep, who: Admin, worker_id: str) -> None:
    """Forget a worker that is gone for good."""
    await workers.remove(core, who, worker_id)
