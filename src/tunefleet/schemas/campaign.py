"""Campaigns and models; part of the HTTP API under `/api/v1`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from tunefleet.lifecycle.cycle import CampaignStatus, CycleStatus, StepName, StepStatus
from tunefleet.lifecycle.model_version import Stage
from tunefleet.schemas.base import Body, Message

Level = Literal["info", "warning", "error"]
Unit = Literal["rows", "bytes", "MiB", "steps"]
"""What is counted while a step works."""


class StepView(Message):
    """A step of a cycle.

    Args:
        intent: What it was about to do.
        outcome: What it did, once it is done.
    """

    name: StepName
    status: StepStatus
    intent: dict[str, Any] | None = None
    outcome: dict[str, Any] | None = None
    error: str | None = None
    begun_at: datetime
    finished_at: datetime | None = None


class ActivityView(Message):
    """What the current step of a cycle does, as it said last.

    Args:
        what: In one word, such as `downloading`, `shuffling`, `uploading` or `merging`.
        done: How much of it is done.
        total: How much there is; null if nobody knows.
        unit: What is counted; null if nothing is.
        of: What it is done to: a task, or files.
    """

    what: str
    done: int = 0
    total: int | None = None
    unit: Unit | None = None
    of: str | None = None
    at: datetime


class TrackingView(Message):
    """What a tracker knows of a cycle.

    Args:
        told_at: When it was told; null until then.
        place: Where its run is: a URL, a path or a name.
        tries: How often it did not take it.
        retry_at: When it is told again, after a failure.
        error: Why it did not take it last.
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
        position: Which chunk it trains on, counted over all epochs.
        step: The next one, or the one under way.
        tries: How often that failed in a row.
        retry_at: When it is tried again, or looked at again.
        activity: How far the step is, once it has said so.
        error: What went wrong last.
        retried: How often somebody let it go back.
        cost: What was paid for it.
        version: Of the model that it made.
        tracking: What each tracker of the campaign knows of it.
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
        base_model: Of its first cycle.
        cycles: How many were opened.
        cycle: The one that runs, or the newest; its steps are shown with the campaign itself.
        next_at: When the next cycle may open, while none runs.
        failures: Cycles that failed in a row.
        spent: In all, in the units of the campaign's costs.
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
    """A campaign with what was asked of it, and its newest cycles, newest first."""

    spec: dict[str, Any]
    cycle_list: tuple[CycleView, ...]


class CampaignApplied(Message):
    """What became of one campaign of a file."""

    id: str
    name: str
    change: Literal["created", "changed", "unchanged"]
    status: CampaignStatus
    reason: str | None


class CampaignRetry(Body):
    """What is to be tried again; by default what failed last.

    Args:
        cycle: Which one.
        step: From which step on; by default the one that failed. A task that failed is ordered anew.
    """

    cycle: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    step: StepName | None = None


class CampaignRemerge(Body):
    """Which cycle's model is to be merged again; by default the newest that was merged."""

    cycle: Annotated[int, Field(ge=0, lt=2**31)] | None = None


class CampaignRollback(Body):
    """Which version is to be promoted again; by default the one that was promoted before."""

    version: Annotated[int, Field(ge=1, lt=2**31)] | None = None


class CampaignLine(Message):
    """A line of the log of a campaign; `id` grows."""

    id: int
    at: datetime
    campaign: str
    cycle: int | None
    step: StepName | None
    level: Level
    text: str


class CampaignLog(Message):
    """A piece of the log of a campaign; `next_id` is what the next piece is asked for with."""

    lines: tuple[CampaignLine, ...]
    next_id: int


class LineageView(Message):
    """How a cycle came to its model: what each step left, as far as it came.

    Args:
        chunk: Which rows, with their digest.
        task: At the provider.
        candidates: What it made, as measured.
        gate: Why it was promoted, or not.
        published: Where it went.
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
        name: The name of the campaign that made it.
        form: `model`, or `adapter` where nothing was merged.
        location: Where it is: `artifact_id` on this server, `url` elsewhere.
        lineage: What it was made of.
        evaluation: How it was measured.
        reason: Why it has its stage.
        promoted_at: When it was promoted last.
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
