"""Tasks as a page shows them: counted, at a glance, and many at once."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, Field

from tunefleet.api.auth import CoreDep, Member, Reader
from tunefleet.api.query_params import names, one_of
from tunefleet.api.routers import api_router
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.scheduling import demand
from tunefleet.orchestrator.scheduling.demand import Sort
from tunefleet.orchestrator.tasks import bulk_actions, listing
from tunefleet.orchestrator.tasks.listing import Look
from tunefleet.schemas.ui import ManyReply, ManyRequest, Overview, TaskCounts, TaskDemand

router = api_router(tags=["tasks"])

Words = Annotated[
    str | None,
    Field(max_length=200, description="Words that are in id, name, kind, owner, worker or workflow.", examples=["sft"]),
]


class TaskChoice(BaseModel):
    """Which tasks; a filter takes several values separated by commas."""

    status: Annotated[str | None, one_of(TaskStatus), Field(examples=["running"])] = None
    kind: Annotated[str | None, Field(examples=["lora_sft"])] = None
    owner: str | None = None
    workflow_id: str | None = None
    worker_id: str | None = None
    id: Annotated[str | None, Field(max_length=4000, description="Only these tasks, by their whole ids.")] = None
    q: Words = None

    def look(self) -> Look:
        """Return what to look for, without an order."""
        return Look(q=self.q, filters=self.model_dump(include=set(FILTERS)))


FILTERS = ("status", "kind", "owner", "workflow_id", "worker_id", "id")


class WorkerSort(BaseModel):
    """What workers of a pool have; once one of them is there, what that one has is looked at instead."""

    pool: Annotated[str, Field(min_length=1, max_length=200, description="Their ids begin with it and a dot.")]
    cpu: Annotated[int, Field(ge=0, description="Cores; 0 if that is not known.")] = 0
    memory_bytes: Annotated[int, Field(ge=0, description="Main memory; 0 if that is not known.")] = 0
    gpu_count: Annotated[int, Field(ge=0)] = 0
    tags: Annotated[str, Field(max_length=4000, description="With commas.")] = ""
    allow_code: Annotated[bool, Field(description="Whether they run code that a document names.")] = False

    def sort(self) -> Sort:
        """Return it as the service takes it."""
        fields = self.model_dump(exclude={"tags"})
        return Sort(**fields, tags=frozenset(names(self.tags) or ()))


@router.get("/overview")
async def overview(core: CoreDep, who: Reader) -> Overview:
    """Show what is going on: how many tasks and workers of each status, what runs, what goes next, what failed."""
    return await listing.overview(core, who)


@router.get("/tasks/counts")
async def count_tasks(core: CoreDep, who: Reader, wanted: Annotated[TaskChoice, Query()]) -> TaskCounts:
    """Count tasks by status, kind, owner and worker, under the same filters as the list."""
    return await listing.counts(core, who, wanted.look())


@router.get("/tasks/demand")
async def demand_of_tasks(core: CoreDep, who: Reader, wanted: Annotated[WorkerSort, Query()]) -> TaskDemand:
    """Say how many workers of one sort the tasks that wait would take; those with an engine get theirs from it."""
    return await demand.of(core, who, wanted.sort())


@router.post("/tasks/bulk")
async def change_many(core: CoreDep, who: Member, wanted: ManyRequest) -> ManyReply:
    """Cancel, retry or remove up to 1,000 tasks; the answer says of each what became of it."""
    return await bulk_actions.do(core, who, wanted)
