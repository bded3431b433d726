"""Tasks: what a worker runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from tunefleet.lifecycle.task import TaskStatus
from tunefleet.server.auth import CoreDep, Member, Reader
from tunefleet.server.params import Cursor, Limit, one_of
from tunefleet.services import tasks
from tunefleet.services import why as why_service
from tunefleet.wire.api import CloneRequest, Page, TaskDetail, TaskView
from tunefleet.wire.fleet import WhyView

router = APIRouter(prefix="/tasks", tags=["tasks"])


class TaskFilter(BaseModel):
    """Which tasks to list; a filter takes several values separated by commas."""

    limit: Limit = 50
    cursor: Cursor = None
    status: Annotated[str | None, one_of(TaskStatus), Field(examples=["running"])] = None
    kind: Annotated[str | None, Field(examples=["lora_sft"])] = None
    owner: str | None = None
    workflow_id: str | None = None
    worker_id: str | None = None


@router.get("")
async def list_tasks(
    core: CoreDep,
    who: Reader,
    wanted: Annotated[TaskFilter, Query()],
) -> Page[TaskView]:
    """List tasks, newest first."""
    return await tasks.list_(core, who, **wanted.model_dump())


@router.get("/{task_id}")
async def get_task(core: CoreDep, who: Reader, task_id: str) -> TaskDetail:
    """Show a task; the id may be shortened as long as it is unique."""
    return await tasks.get(core, who, task_id)


@router.get("/{task_id}/why")
async def why(core: CoreDep, who: Reader, task_id: str) -> WhyView:
    """Say why a task waits, worker by worker."""
    return await why_service.of_task(core, who, task_id)


@router.delete("/{task_id}", status_code=204)
async def remove_task(core: CoreDep, who: Member, task_id: str) -> None:
    """Remove a final task with what it produced."""
    await tasks.remove(core, who, task_id)


@router.post("/{task_id}/cancel")
async def cancel(core: CoreDep, who: Member, task_id: str) -> TaskDetail:
    """Cancel a task; one that runs ends at its next step."""
    return await tasks.cancel(core, who, task_id)


@router.post("/{task_id}/retry", status_code=201)
async def retry(core: CoreDep, who: Member, task_id: str) -> TaskDetail:
    """Submit a final task again as a new one."""
    made = await tasks.retry(core, who, task_id)
    return await tasks.get(core, who, made.tasks[0].id)


@router.post("/{task_id}/clone", status_code=201)
async def clone(core: CoreDep, who: Member, task_id: str, changes: CloneRequest) -> TaskDetail:
    """Submit a task again with some fields changed."""
    made = await tasks.clone(core, who, task_id, changes.overrides)
    return await tasks.get(core, who, made.tasks[0].id)
