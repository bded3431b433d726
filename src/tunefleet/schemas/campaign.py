"""Campaigns and models; part of the HTTP API under `/api/v1`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from tunefleet.lifecycle.cycle import CampaignStatus, CycleStatus, Stage, StepName, StepStatus
from tunefleet.schemas.base import Body, Message

Level = Literal["info", "warning", "error"]
# Unit of the progress of a step.
Unit = Literal["rows", "bytes", "MiB", "steps"]


class StepView(Message):
    """A step of a cycle.

    Args:
        intent: The intended action.
        outcome: The result, once it is done.
    """

    name: StepName
    status: StepStatus
    intent: dict[str, Any] | None = None
    outcome: dict[str, Any] | None = None
    error: str | None = None
    begun_at: datetime
    finished_at: datetime | None = None


class ActivityView(Message):
    """Current activity of a cycle's step.

    Args:
        what: The activity, such as `downloading`, `shuffling`, `uploading` or `merging`.
        done: Completed units.
        total: Total units; null if unknown.
        unit: The unit; null if nothing is counted.
        of: The object of the activity: a task, or files.
    """

    what: str
    done: int = 0
    total: int | None = None
    unit: Unit | None = None
    of: str | None = None
    at: datetime


class TrackingView(Message):
    """Status of a cycle in an experiment tracker.

    Args:
        told_at: Time of the successful report; null until then.
        place: Location of its run: a URL, a path or a name.
        tries: Number of failed reports.
        retry_at: Time of the next attempt after a failure.
        error: Reason of the last failure.
    """

    tracker: str
    told_at: datetime | None = None
    place: str | None = None
    tries: int = 0
    retry_at: datetime | None = None
    error: str | None = None


class CycleView(Message):
    """A cycle of a campaign.

    Args:
        position: Index of its chunk, counted over all epochs.
        step: The current or next step.
        tries: Consecutive failures of that step.
        retry_at: Time of the next attempt or status check.
        activity: Progress of the step, once reported.
        error: The last error.
        retried: Number of manual retries.
        cost: Its cost so far.
        version: Version of the model that it created.
        tracking: Its status in each experiment tracker.
    """

    number: int
    position: int
    status: CycleStatus
    step: StepName
    tries: int
    retry_at: datetime | None
    waiting: str | None
    activity: ActivityView | None = None
    error: str | None
    retried: int
    cost: float
    version: int | None
    opened_at: datetime
    finished_at: datetime | None
    steps: tuple[StepView, ...]
    tracking: tuple[TrackingView, ...] = ()


class CampaignView(Message):
    """A campaign in a list.

    Args:
        reason: Why it is paused, held or stopped.
        base_model: Base model of its first cycle.
        cycles: Number of cycles so far.
        cycle: The running cycle, or the newest one.
        next_at: Earliest start of the next cycle, if none is running.
        failures: Number of consecutive failed cycles.
        spent: Total cost, in the unit of the campaign's costs.
        promoted: The promoted version of its model.
    """

    id: str
    name: str
    owner: str
    status: CampaignStatus
    reason: str | None
    provider: str | None
    base_model: str
    cycles: int
    cycle: CycleView | None
    next_at: datetime | None
    failures: int
    spent: float
    promoted: int | None
    created_at: datetime
    changed_at: datetime


class CampaignDetail(CampaignView):
    """A campaign with its spec and its newest cycles, newest first."""

    spec: dict[str, Any]
    cycle_list: tuple[CycleView, ...]


class CampaignApplied(Message):
    """Result of applying one campaign of a file."""

    id: str
    name: str
    change: Literal["created", "changed", "unchanged"]
    status: CampaignStatus
    reason: str | None


class CampaignRetry(Body):
    """What to retry; default: the last failure.

    Args:
        cycle: Number of the cycle.
        step: First step to repeat; default: the failed one. A failed task is submitted again.
    """

    cycle: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    step: StepName | None = None


class CampaignRemerge(Body):
    """The cycle whose model to merge again; default: the newest merged one."""

    cycle: Annotated[int, Field(ge=0, lt=2**31)] | None = None


class CampaignRollback(Body):
    """The version to promote again; default: the previously promoted one."""

    version: Annotated[int, Field(ge=1, lt=2**31)] | None = None


class CampaignLine(Message):
    """A line of a campaign's log; `id` increases."""

    id: int
    at: datetime
    campaign: str
    cycle: int | None
    step: StepName | None
    level: Level
    text: str


class CampaignLog(Message):
    """A section of a campaign's log; `next_id` requests the next section."""

    lines: tuple[CampaignLine, ...]
    next_id: int


class LineageView(Message):
    """Provenance of a cycle's model: the results of its steps so far.

    Args:
        chunk: The rows, with their digest.
        task: The task at the provider.
        candidates: The resulting models with their metrics.
        gate: Why it was or was not promoted.
        published: Where it was published.
    """

    cycle: int
    position: int
    status: CycleStatus
    chunk: dict[str, Any] | None = None
    task: dict[str, Any] | None = None
    candidates: dict[str, Any] | None = None
    chosen: dict[str, Any] | None = None
    merged: dict[str, Any] | None = None
    gate: dict[str, Any] | None = None
    published: dict[str, Any] | None = None
    version: int | None = None
    stage: Stage | None = None


class ModelVersionView(Message):
    """A version of a model in the registry.

    Args:
        name: Name of the campaign that created it.
        form: `model`, or `adapter` if nothing was merged.
        location: `artifact_id` on this server, or `url` elsewhere.
        lineage: Its provenance.
        evaluation: Its metrics.
        reason: Reason of its stage.
        promoted_at: Time of the last promotion.
    """

    name: str
    version: int
    owner: str
    stage: Stage
    form: str
    campaign_id: str
    cycle: int
    location: dict[str, Any]
    lineage: dict[str, Any]
    evaluation: dict[str, Any]
    reason: str | None
    created_at: datetime
    promoted_at: datetime | None
