"""Steering a task: pause, resume, stop, commands, and its checkpoints."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from tunefleet.api.auth import CoreDep, Member, Reader
from tunefleet.api.routers import api_router
from tunefleet.orchestrator.tasks import control
from tunefleet.schemas.api import CheckpointView, CommandRequest, CommandView, ResumeRequest, StopRequest, TaskDetail

router = api_router(prefix="/tasks/{task_id}", tags=["steering"])

Wait = Annotated[float, Query(ge=0, le=control.MAX_WAIT_S, description="Hold the answer until it has its outcome.")]


@router.post("/pause")
async def pause(core: CoreDep, who: Member, task_id: str) -> TaskDetail:
    """Pause a running task: it saves at the end of its step and ends; `desired` tells that it is on its way."""
    return await control.pause(core, who, task_id)


@router.post("/resume")
async def resume(core: CoreDep, who: Member, task_id: str, wanted: ResumeRequest | None = None) -> TaskDetail:
    """Let a paused task go on at its place in the queue; a final one goes on as a new task linked to it."""
    return await control.resume(core, who, task_id, wanted.from_step if wanted else None)


@router.post("/stop", status_code=202)
async def stop(core: CoreDep, who: Member, task_id: str, wanted: StopRequest | None = None) -> CommandView:
    """End a training early, as completed: what it has learned is delivered."""
    return await control.stop(core, who, task_id, save=wanted.save if wanted else True)


@router.post("/commands", status_code=202)
async def give_command(core: CoreDep, who: Member, task_id: str, request: CommandRequest) -> CommandView:
    """Give a running task a command; a known `command_id` returns what became of it."""
    return await control.command(core, who, task_id, request)


@router.get("/commands")
async def list_commands(core: CoreDep, who: Reader, task_id: str) -> tuple[CommandView, ...]:
    """List the commands of a task, oldest first."""
    return tuple(await control.list_(core, who, task_id))


@router.get("/commands/{command_id}")
async def get_command(core: CoreDep, who: Reader, task_id: str, command_id: str, wait_s: Wait = 0.0) -> CommandView:
    """Say what became of a command."""
    return await control.get(core, who, task_id, command_id, wait_s=wait_s)


@router.get("/checkpoints")
async def list_checkpoints(core: CoreDep, who: Reader, task_id: str) -> tuple[CheckpointView, ...]:
    """List the whole checkpoints of a task in step order; what a resume superseded is left out."""
    return tuple(await control.list_checkpoints(core, who, task_id))
