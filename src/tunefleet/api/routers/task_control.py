"""Control of a running task: pause, resume, stop, commands, and its checkpoints."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from tunefleet.api.auth import CoreDep, Member, Reader
from tunefleet.api.routers import api_router
from tunefleet.orchestrator.tasks import control
from tunefleet.orchestrator.workflows import reruns
from tunefleet.schemas.api import CheckpointView, CommandRequest, CommandView, ResumeRequest, StopRequest, TaskDetail

router = api_router(prefix="/tasks/{task_id}", tags=["control"])

Wait = Annotated[float, Query(ge=0, le=control.MAX_WAIT_S, description="How long to wait for the outcome, in seconds.")]


@router.post("/pause")
async def pause(core: CoreDep, who: Member, task_id: str) -> TaskDetail:
    """Pause a running task. It saves a checkpoint after its current step; until then, `desired` shows the request."""
    return await control.pause(core, who, task_id)


@router.post("/resume")
async def resume(core: CoreDep, who: Member, task_id: str, wanted: ResumeRequest | None = None) -> TaskDetail:
    """Resume a paused task, which is queued again. A final task is resumed as a new task that is linked to it."""
    return await reruns.resume(core, who, task_id, wanted.from_step if wanted else None)


@router.post("/stop", status_code=202)
async def stop(core: CoreDep, who: Member, task_id: str, wanted: StopRequest | None = None) -> CommandView:
    """Stop a training run early. It completes with the weights trained so far."""
    return await control.stop(core, who, task_id, save=wanted.save if wanted else True)


@router.post("/commands", status_code=202)
async def give_command(core: CoreDep, who: Member, task_id: str, request: CommandRequest) -> CommandView:
    """Send a command to a running task. A known `command_id` returns the state of that command."""
    return await control.command(core, who, task_id, request)


@router.get("/commands")
async def list_commands(core: CoreDep, who: Reader, task_id: str) -> tuple[CommandView, ...]:
    """List the commands of a task, oldest first."""
    return tuple(await control.list_(core, who, task_id))


@router.get("/commands/{command_id}")
async def get_command(core: CoreDep, who: Reader, task_id: str, command_id: str, wait_s: Wait = 0.0) -> CommandView:
    """Retrieve a command and its outcome."""
    return await control.get(core, who, task_id, command_id, wait_s=wait_s)


@router.get("/checkpoints")
async def list_checkpoints(core: CoreDep, who: Reader, task_id: str) -> tuple[CheckpointView, ...]:
    """List the complete checkpoints of a task in step order, except those superseded by a resume."""
    return tuple(await control.list_checkpoints(core, who, task_id))
