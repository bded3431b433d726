"""Projects over HTTP: what they may use, what they have used, and who did what."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from tunefleet.schemas.base import Body, Message

# Small letters, digits, dots, dashes and underlines; at most 63.
ProjectName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Weight = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
MaxRunning = Annotated[int, Field(ge=0, le=1_000_000)]
GpuHours = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
StorageBytes = Annotated[int, Field(ge=0, le=1 << 60)]
UsageBy = Literal["project", "worker", "kind", "day", "gpu"]


class ProjectCreate(Body):
    """A new project.

    Args:
        name: What it is called, for good.
        description: What it is for.
        weight: Its part of a fleet that several projects want; one with 2 gets twice what one with 1 gets.
        max_running: Tasks that run at once, at most; null for any number.
        gpu_hours: GPU hours a calendar month (UTC), at most; null for any number.
        storage_bytes: Bytes of stored files and of workflows' documents, at most; null for any number.
    """

    name: ProjectName
    description: str | None = Field(default=None, max_length=500)
    weight: Weight = 1.0
    max_running: MaxRunning | None = None
    gpu_hours: GpuHours | None = None
    storage_bytes: StorageBytes | None = None


class ProjectChange(Body):
    """What is to be different about a project; what is left out stays, null takes a quota away.

    Args:
        description: What it is for.
        weight: Its part of a fleet that several projects want.
        max_running: Tasks that run at once, at most.
        gpu_hours: GPU hours a calendar month (UTC), at most.
        storage_bytes: Bytes of stored files and of workflows' documents, at most.
        archived: Whether it rests: its keys are refused, and its tasks wait.
    """

    description: str | None = Field(default=None, max_length=500)
    weight: Weight | None = None
    max_running: MaxRunning | None = None
    gpu_hours: GpuHours | None = None
    storage_bytes: StorageBytes | None = None
    archived: bool | None = None

    @model_serializer(mode="wrap")
    def _named(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A null that was given takes a quota away; what was not given must not become one.
        return {name: value for name, value in whole(self).items() if name in self.model_fields_set}


class ProjectUse(Message):
    """What a project uses now.

    Args:
        running: Tasks that were offered or run.
        waiting: Tasks that wait for a worker, or for a quota.
        gpu_hours: In this calendar month (UTC), with what runs.
        storage_bytes: Of stored files, and of workflows' documents with what their tasks have of them.
    """

    running: int = 0
    waiting: int = 0
    gpu_hours: float = 0.0
    storage_bytes: int = 0


class ProjectView(Message):
    """A project, its quotas (null for none), and what it uses of them."""

    name: str
    description: str | None = None
    weight: float
    max_running: int | None = None
    gpu_hours: float | None = None
    storage_bytes: int | None = None
    created_by: str
    created_at: datetime
    archived_at: datetime | None = None
    uses: ProjectUse


class UsageRow(Message):
    """What was used under one heading.

    Args:
        key: The project, worker, kind, day (UTC, `2026-11-23`) or GPU model; empty for work without a GPU.
        attempts: How many attempts, those that run included.
        wall_s: Seconds from accept to end, in all.
        cpu_s: The same times the cores that were asked for.
        gpu_s: The same times the GPUs that were given.
        gpu_s_by_model: That by the GPUs' product name.
        energy_wh: What the GPUs have used, where workers told it; null if nobody did.
        cost: By `WORKER_COST_PER_HOUR`; null if no worker's is known.
    """

    key: str
    attempts: int
    wall_s: float
    cpu_s: float
    gpu_s: float
    gpu_s_by_model: dict[str, float] = Field(default_factory=dict)
    energy_wh: float | None = None
    cost: float | None = None


class UsageView(Message):
    """What was used since a time: `rows` under headings, and `total` of all of them."""

    since: datetime
    until: datetime
    by: UsageBy
    project: str | None = None
    rows: tuple[UsageRow, ...]
    total: UsageRow


class AuditEntry(Message):
    """One request that could change something.

    Args:
        id: Grows with time.
        at: When it was answered.
        key_id: The key; null for who had none.
        actor: Whom the key belongs to.
        address: Whence it came.
        route: The route's template.
        target: What was named in the path, as `name=value`; empty if nothing was.
        status: The HTTP status of the answer.
        request_id: Also in the answer's `X-Request-ID`.
    """

    id: int
    at: datetime
    key_id: str | None = None
    actor: str | None = None
    role: str | None = None
    project: str | None = None
    address: str
    method: str
    route: str
    target: str = ""
    status: int
    request_id: str
