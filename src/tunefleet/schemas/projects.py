"""Projects over HTTP: quotas, usage, and the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from tunefleet.schemas.base import Body, Message

# Lowercase letters, digits, dots, dashes and underscores; at most 63.
ProjectName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Weight = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
MaxRunning = Annotated[int, Field(ge=0, le=1_000_000)]
GpuHours = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
StorageBytes = Annotated[int, Field(ge=0, le=1 << 60)]
UsageBy = Literal["project", "worker", "kind", "day", "gpu"]


class ProjectCreate(Body):
    """A new project.

    Args:
        name: Name; cannot be changed.
        description: Purpose of the project.
        weight: Fair-share weight; a project with 2 gets twice the share of one with 1.
        max_running: Maximum number of running tasks; null for unlimited.
        gpu_hours: Maximum GPU hours per calendar month (UTC); null for unlimited.
        storage_bytes: Maximum bytes of stored files and workflow files; null for unlimited.
    """

    name: ProjectName
    description: str | None = Field(default=None, max_length=500)
    weight: Weight = 1.0
    max_running: MaxRunning | None = None
    gpu_hours: GpuHours | None = None
    storage_bytes: StorageBytes | None = None


class ProjectChange(Body):
    """Changes to a project; omitted fields do not change, null removes a quota.

    Args:
        description: Purpose of the project.
        weight: Fair-share weight.
        max_running: Maximum number of running tasks.
        gpu_hours: Maximum GPU hours per calendar month (UTC).
        storage_bytes: Maximum bytes of stored files and workflow files.
        archived: Archived: its keys are rejected, and its tasks stay queued.
    """

    description: str | None = Field(default=None, max_length=500)
    weight: Weight | None = None
    max_running: MaxRunning | None = None
    gpu_hours: GpuHours | None = None
    storage_bytes: StorageBytes | None = None
    archived: bool | None = None

    @model_serializer(mode="wrap")
    def _named(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Null removes a quota, so unset fields must not be serialized as null.
        return {name: value for name, value in whole(self).items() if name in self.model_fields_set}


class ProjectUse(Message):
    """Current usage of a project.

    Args:
        running: Tasks that are offered or running.
        waiting: Tasks that wait for a worker or a quota.
        gpu_hours: GPU hours in this calendar month (UTC), including running tasks.
        storage_bytes: Bytes of stored files, and of workflow files including their tasks' specs.
    """

    running: int = 0
    waiting: int = 0
    gpu_hours: float = 0.0
    storage_bytes: int = 0


class ProjectView(Message):
    """A project, its quotas (null for none), and its usage."""

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
    """Usage of one group.

    Args:
        key: The project, worker, kind, day (UTC, `2026-11-23`) or GPU model; empty for work without a GPU.
        attempts: Number of attempts, including running ones.
        wall_s: Total seconds from accept to end.
        cpu_s: Wall time multiplied by the requested cores.
        gpu_s: Wall time multiplied by the assigned GPUs.
        gpu_s_by_model: GPU seconds by product name.
        energy_wh: Energy of the GPUs, as far as reported; null if no worker reported it.
        cost: Cost by `TUNEFLEET_COST_PER_HOUR`; null if unknown for all workers.
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
    """Usage in a period: `rows` by group, and `total`."""

    since: datetime
    until: datetime
    by: UsageBy
    project: str | None = None
    rows: tuple[UsageRow, ...]
    total: UsageRow


class AuditEntry(Message):
    """One write request.

    Args:
        id: Increases with time.
        at: Time of the response.
        key_id: The key; null without one.
        actor: Owner of the key.
        address: Address of the client.
        route: The route's template.
        target: Path parameters, as `name=value`; empty if there are none.
        status: HTTP status of the response.
        request_id: As in the response header `X-Request-ID`.
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
