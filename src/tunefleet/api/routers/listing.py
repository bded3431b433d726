"""Task lists of the web UI: counts, summaries and bulk actions."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, Field

from tunefleet.api.auth import CoreDep, Member, Reader
from tunefleet.api.query_params import names, one_of
from tunefleet.api.routers import api_router
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.scheduling import demand
from tunefleet.orchestrator.scheduling.demand import WorkerPool
from tunefleet.orchestrator.tasks import listing
from tunefleet.orchestrator.tasks.listing import TaskListQuery
from tunefleet.orchestrator.workflows import bulk_actions
from tunefleet.schemas.ui import ManyReply, ManyRequest, Overview, TaskCounts, TaskDemand

router = api_router(tags=["tasks"])

Words = Annotated[
    str | None,
    Field(
        max_length=200,
        description="Words to search in id, name, kind, owner, worker, workflow, model, dataset, method and tags.",
        examples=["sft"],
    ),
]
FILTERS = ("status", "kind", "owner", "workflow_id", "worker_id", "model", "dataset", "method", "tag", "id")


class TaskChoice(BaseModel):
    """Filters of tasks. Separate several values with commas."""

    status: Annotated[str | None, one_of(TaskStatus), Field(examples=["running"])] = None
    kind: Annotated[str | None, Field(examples=["lora_sft"])] = None
    owner: str | None = None
    workflow_id: str | None = None
    worker_id: str | None = None
    model: str | None = None
    dataset: str | None = None
    method: Annotated[str | None, Field(examples=["lora_sft"])] = None
    tag: str | None = None
    id: Annotated[str | None, Field(max_length=4000, description="Comma-separated complete task ids.")] = None
    q: Words = None

    def look(self) -> TaskListQuery:
        """Return the query, without an order."""
        return TaskListQuery(q=self.q, filters=self.model_dump(include=set(FILTERS)))


class WorkerSort(BaseModel):
    """Resources of a pool's workers. Once one of them is online, its actual resources are used instead."""

    pool: Annotated[
        str, Field(min_length=1, max_length=200, description="Prefix of the workers' ids, followed by a dot.")
    ]
    cpu: Annotated[int, Field(ge=0, description="CPU cores; 0 if unknown.")] = 0
    memory_bytes: Annotated[int, Field(ge=0, description="Main memory in bytes; 0 if unknown.")] = 0
    gpu_count: Annotated[int, Field(ge=0)] = 0
    tags: Annotated[str, Field(max_length=4000, description="Comma-separated tags.")] = ""
    allow_code: Annotated[bool, Field(description="Whether the workers run custom code.")] = False

    def sort(self) -> WorkerPool:
        """Return it in the service's form."""
        fields = self.model_dump(exclude={"tags"})
        return WorkerPool(**fields, tags=frozenset(names(self.tags) or ()))


@router.get("/overview")
async def overview(core: CoreDep, who: Reader) -> Overview:
    """Retrieve an overview: number of tasks and workers by status, running tasks, next tasks, failed tasks."""
    return await listing.overview(core, who)


@router.get("/tasks/counts")
async def count_tasks(core: CoreDep, who: Reader, wanted: Annotated[TaskChoice, Query()]) -> TaskCounts:
    """Count tasks by status, kind, owner, worker, model, method and tag. Takes the same filters as the list."""
    return await listing.counts(core, who, wanted.look())


@router.get("/tasks/demand")
async def demand_of_tasks(core: CoreDep, who: Reader, wanted: Annotated[WorkerSort, Query()]) -> TaskDemand:
    """Count how many workers of one kind the pending tasks need. Workers with an engine get their tasks from it."""
    return await demand.of(core, who, wanted.sort())


@router.post("/tasks/bulk")
async def change_many(core: CoreDep, who: Member, wanted: ManyRequest) -> ManyReply:
    """Cancel, retry, delete or tag up to 1,000 tasks. The response contains the outcome for each of them."""
    return await bulk_actions.do(core, who, wanted)
