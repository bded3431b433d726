"""API views of campaigns, cycles, log lines and models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import orjson

from tunefleet.campaign.service import step_progress
from tunefleet.campaign.service.cycles import kept_of
from tunefleet.campaign.service.status import readable
from tunefleet.db import Connection
from tunefleet.db.campaigns import campaigns, cycles, models
from tunefleet.db.campaigns.campaigns import CampaignRow, LineRow
from tunefleet.db.campaigns.cycles import CycleRow, StepRow, TrackingRow
from tunefleet.db.campaigns.models import ModelRow
from tunefleet.lifecycle.cycle import CampaignStatus, CycleStatus, Stage, StepName, StepStatus
from tunefleet.observability.logs import scrub
from tunefleet.orchestrator.views import to_datetime, to_optional_datetime
from tunefleet.schemas.campaign import (
    CampaignDetail,
    CampaignLine,
    CampaignView,
    CycleView,
    LineageView,
    ModelVersionView,
    StepView,
    TrackingView,
)

# How many cycles are shown with their campaign.
NEWEST_CYCLES: Final = 10
_LINEAGE: Final = {
    "chunk": StepName.DATA,
    "task": StepName.SUBMIT,
    "candidates": StepName.EVALUATE,
    "chosen": StepName.SELECT,
    "merged": StepName.MERGE,
    "gate": StepName.GATE,
    "published": StepName.PUBLISH,
}


def campaign_view(connection: Connection, row: CampaignRow) -> CampaignView:
    """Show a campaign in a list."""
    return CampaignView(**_fields(connection, row))


def campaign_detail(connection: Connection, row: CampaignRow) -> CampaignDetail:
    """Show a campaign with its spec and newest cycles."""
    newest = cycles.page(connection, row.seq, limit=NEWEST_CYCLES)
    spec = readable(row.spec)
    return CampaignDetail(
        **_fields(connection, row),
        spec=_shown(row.spec if spec is None else spec.model_dump_json(exclude_none=True, by_alias=True)),
        cycle_list=tuple(cycle_views(connection, row, newest)),
    )


def _fields(connection: Connection, row: CampaignRow) -> dict[str, Any]:
    # Read as plain JSON: a spec that is not valid in this version is still shown.
    spec: dict[str, Any] = orjson.loads(row.spec)
    newest = cycles.page(connection, row.seq, limit=1)
    running = cycles.running(connection, row.seq)
    shown = running[:1] or newest
    promoted = models.promoted(connection, row.project, row.owner, row.name)
    idle = row.status == CampaignStatus.ACTIVE and not running
    return {
        "id": row.id,
        "name": row.name,
        "owner": row.owner,
        "status": row.status,
        "reason": row.reason,
        "provider": spec.get("provider"),
        "base_model": spec.get("model_repo", ""),
        "cycles": row.cycles,
        "cycle": cycle_views(connection, row, shown, steps=False)[0] if shown else None,
        "next_at": to_datetime(row.next_at) if idle and row.next_at else None,
        "failures": row.failures,
        "spent": campaigns.total_spend(connection, row.seq),
        "promoted": None if promoted is None else promoted.version,
        "created_at": to_datetime(row.created_at),
        "changed_at": to_datetime(row.changed_at),
    }


def cycle_views(
    connection: Connection, row: CampaignRow, found: Sequence[CycleRow], *, steps: bool = True
) -> list[CycleView]:
    """Show cycles of a campaign."""
    numbers = [each.number for each in found]
    of_steps = cycles.steps(connection, row.seq, numbers) if steps else []
    costs = campaigns.spend_of_cycles(connection, row.seq)
    tracked = cycles.tracking_of(connection, row.seq, numbers)
    versions = {made.cycle: made.version for made in models.of_campaign(connection, row.id, numbers)}
    return [
        _cycle(
            each,
            sorted((step for step in of_steps if step.cycle == each.number), key=_order),
            costs.get(each.number, 0.0),
            versions.get(each.number),
            [tracking_row for tracking_row in tracked if tracking_row.cycle == each.number],
        )
        for each in found
    ]


def _cycle(
    row: CycleRow, steps: Sequence[StepRow], cost: float, version: int | None, tracked: Sequence[TrackingRow]
) -> CycleView:
    running = row.status == CycleStatus.RUNNING
    return CycleView(
        number=row.number,
        position=row.position,
        status=CycleStatus(row.status),
        step=StepName(row.step),
        tries=row.tries,
        retry_at=to_datetime(row.not_before) if running and row.not_before else None,
        waiting=row.waiting,
        activity=step_progress.shown(row) if running else None,
        error=row.error,
        retried=row.retried,
        cost=cost,
        version=version,
        opened_at=to_datetime(row.opened_at),
        finished_at=to_optional_datetime(row.finished_at),
        # A row that only keeps external state of an earlier attempt is not a started step.
        steps=tuple(_step(each) for each in steps if each.intent is not None or kept_of(each) is None),
        tracking=tuple(_tracking(each) for each in tracked),
    )


def _tracking(row: TrackingRow) -> TrackingView:
    again = row.told_at is None and row.tries > 0
    return TrackingView(
        tracker=row.tracker,
        told_at=to_optional_datetime(row.told_at),
        place=row.place,
        tries=row.tries,
        retry_at=to_datetime(row.not_before) if again else None,
        error=row.error,
    )


def _step(row: StepRow) -> StepView:
    return StepView(
        name=StepName(row.step),
        status=StepStatus(row.status),
        intent=None if row.intent is None else _shown(row.intent),
        outcome=None if row.outcome is None or kept_of(row) is not None else _shown(row.outcome),
        error=row.error,
        begun_at=to_datetime(row.begun_at),
        finished_at=to_optional_datetime(row.finished_at),
    )


def _shown(text: str) -> dict[str, Any]:
    """Parse stored JSON for display, with signatures and other credentials redacted."""
    found: dict[str, Any] = orjson.loads(scrub(text))
    return found


def _order(row: StepRow) -> int:
    return list(StepName).index(StepName(row.step))


def line_view(row: CampaignRow, line: LineRow) -> CampaignLine:
    """Show a line of a campaign's log."""
    return CampaignLine(
        id=line.seq,
        at=to_datetime(line.at),
        campaign=row.name,
        cycle=line.cycle,
        step=None if line.step is None else StepName(line.step),
        level=cast(Any, line.level),
        text=line.text,
    )


def lineage_views(connection: Connection, row: CampaignRow, found: Sequence[CycleRow]) -> list[LineageView]:
    """Show the lineage of a campaign's models by cycle."""
    numbers = [each.number for each in found]
    outcomes = {
        (step.cycle, step.step): _shown(step.outcome)
        for step in cycles.steps(connection, row.seq, numbers)
        if step.outcome is not None and kept_of(step) is None
    }
    made = {each.cycle: each for each in models.of_campaign(connection, row.id, numbers)}
    return [
        LineageView(
            cycle=each.number,
            position=each.position,
            status=CycleStatus(each.status),
            **{name: outcomes.get((each.number, step.value)) for name, step in _LINEAGE.items()},
            version=made[each.number].version if each.number in made else None,
            stage=Stage(made[each.number].stage) if each.number in made else None,
        )
        for each in found
    ]


def model_view(row: ModelRow) -> ModelVersionView:
    """Show a version of a model."""
    return ModelVersionView(
        name=row.name,
        version=row.version,
        owner=row.owner,
        stage=Stage(row.stage),
        form=row.form,
        campaign_id=row.campaign_id,
        cycle=row.cycle,
        location=_shown(row.location),
        lineage=_shown(row.lineage),
        evaluation=_shown(row.evaluation),
        reason=row.reason,
        created_at=to_datetime(row.created_at),
        promoted_at=to_optional_datetime(row.promoted_at),
    )
