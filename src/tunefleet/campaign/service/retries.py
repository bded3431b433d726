"""Retry a campaign's failed step, repeat a merge, or roll back to an earlier model."""

from __future__ import annotations

from functools import partial

from tunefleet.campaign.service import cycle_rewind, model_registry, service, views
from tunefleet.campaign.service.status import mine, tell
from tunefleet.db import Connection
from tunefleet.db.campaigns import campaigns, models
from tunefleet.db.campaigns import cycles as cycle_rows
from tunefleet.db.campaigns.campaigns import CampaignRow
from tunefleet.db.campaigns.cycles import CycleRow
from tunefleet.errors import ConflictError, NotFoundError
from tunefleet.lifecycle.cycle import CampaignStatus, CycleStatus, Stage, StepName, StepStatus
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.schemas.campaign import CampaignDetail, CampaignRetry, ModelVersionView

# Number of newest cycles that are searched.
_SEARCHED_CYCLES = 50


async def retry(core: ServerContext, actor: Actor, reference: str, wanted: CampaignRetry) -> CampaignDetail:
    """Resume a held campaign, or move a failed cycle back to its failed step, with the campaign's newest spec.

    Raises:
        ForbiddenError: If it belongs to another user.
        ConflictError: If nothing has failed, or a later cycle has taken over the chunk.
    """
    return await service.change(core, actor, reference, partial(_retry, wanted=wanted))


async def remerge(core: ServerContext, actor: Actor, reference: str, cycle: int | None = None) -> CampaignDetail:
    """Repeat a cycle's merge, publish and record steps; the gate's decision is kept.

    Raises:
        ForbiddenError: If it belongs to another user.
        ConflictError: If the cycle has merged nothing, or is running.
    """
    return await service.change(core, actor, reference, partial(_remerge, wanted=cycle))


async def rollback(core: ServerContext, actor: Actor, reference: str, version: int | None = None) -> ModelVersionView:
    """Promote an earlier version of a campaign's model; the next cycle starts from it and is compared with it.

    Raises:
        ForbiddenError: If it belongs to another user.
        ConflictError: If there is no earlier version, or it is already promoted.
    """

    def operation(connection: Connection) -> ModelVersionView:
        row, now = mine(connection, actor, reference), core.clock.wall()
        if version is None:
            newest = models.newest(connection, row.project, row.owner, row.name)
            any_ = models.get(connection, row.project, row.owner, row.name, newest)
            if any_ is None:
                raise ConflictError(f"Campaign {row.name} has not produced a model yet.")
            return views.model_view(model_registry.roll_back(connection, any_, now))
        found = models.get(connection, row.project, row.owner, row.name, version)
        if found is None:
            hint = "`tunefleet models ls` lists them."
            raise NotFoundError(f"Model {row.name} has no version {version}.", hint=hint)
        if found.stage == Stage.PROMOTED:
            raise ConflictError(f"Version {version} of {row.name} is already promoted.")
        reason = f"{actor.owner} rolled back to it."
        return views.model_view(model_registry.settle(connection, found, Stage.PROMOTED, now, reason=reason))

    return await core.write(operation)


def _retry(connection: Connection, row: CampaignRow, now: float, *, wanted: CampaignRetry) -> CampaignRow:
    if row.status == CampaignStatus.STOPPED:
        raise ConflictError(
            f"Campaign {row.name} is stopped.", hint=f"Resume it with `tunefleet campaign start {row.name}`."
        )
    cycle = _to_retry(connection, row, wanted)
    if cycle is None and row.status != CampaignStatus.HELD:
        raise ConflictError(f"Nothing in campaign {row.name} has failed.")
    if cycle is not None and (cycle.status != CycleStatus.RUNNING or wanted.step is not None):
        step = wanted.step or cycle_rewind.RETRIED_FROM.get(StepName(cycle.step), StepName(cycle.step))
        _check_step(row, cycle, step)
        if cycle.status == CycleStatus.RUNNING and cycle_rewind.is_held(row, now):
            raise ConflictError(
                f"The step {cycle.step} of cycle {cycle.number} of {row.name} is running.",
                hint=f"Pause with `tunefleet campaign pause {row.name}`, wait until the step ends, then retry.",
            )
        cycle_rewind.go_back(connection, row, cycle, step)
        tell(connection, row, "campaign.retried", now, cycle=cycle.number, step=step.value)
    if row.status == CampaignStatus.HELD:
        return service.begin(connection, row, now)
    cycle_rewind.forget_failures(connection, row, now)
    tell(connection, row, "campaign.retried", now)
    return campaigns.change(connection, row, {"failures": 0, "changed_at": now})


def _to_retry(connection: Connection, row: CampaignRow, wanted: CampaignRetry) -> CycleRow | None:
    if wanted.cycle is not None:
        cycle = _cycle(connection, row, wanted.cycle)
        if cycle.status == CycleStatus.COMPLETED:
            raise ConflictError(f"Cycle {cycle.number} of {row.name} is {cycle.status}.")
        if cycle.status == CycleStatus.ABANDONED and cycle.to_cancel:
            raise ConflictError(
                f"The task of cycle {cycle.number} of {row.name} is not cancelled at its provider yet.",
                hint=f"Retry when `tunefleet campaign logs {row.name}` shows that it is cancelled.",
            )
    else:
        cycles_ = cycle_rows.running(connection, row.seq) or cycle_rows.page(connection, row.seq, limit=1)
        found = next((each for each in cycles_ if each.tries or wanted.step is not None), None)
        if found is None or found.status not in {CycleStatus.RUNNING, CycleStatus.FAILED}:
            return None
        cycle = found
    later = [
        each for each in cycle_rows.page(connection, row.seq, limit=_SEARCHED_CYCLES) if each.number > cycle.number
    ]
    again = next((each for each in later if each.position == cycle.position), None)
    if again is not None:
        raise ConflictError(
            f"Cycle {again.number} of {row.name} took over the chunk of cycle {cycle.number}.",
            hint=f"Retry cycle {again.number} if it failed too.",
        )
    return cycle


def _check_step(row: CampaignRow, cycle: CycleRow, step: StepName) -> None:
    if cycle.step not in step.and_later:
        raise ConflictError(
            f"Cycle {cycle.number} of {row.name} is at step {cycle.step} and has not reached {step.value}.",
            hint=f"Omit the step, or name {cycle.step} or an earlier one.",
        )


def _remerge(connection: Connection, row: CampaignRow, now: float, *, wanted: int | None) -> CampaignRow:
    if wanted is None:
        newest = cycle_rows.page(connection, row.seq, limit=_SEARCHED_CYCLES)
        cycle = next((each for each in newest if _merged(connection, each)), None)
        if cycle is None:
            raise ConflictError(f"No cycle of {row.name} has merged a model and finished.")
    else:
        cycle = _cycle(connection, row, wanted)
        if not _merged(connection, cycle):
            raise ConflictError(f"Cycle {wanted} of {row.name} is {cycle.status}, and has no merged model.")
    cycle_rewind.go_back(connection, row, cycle, StepName.MERGE, keep={StepName.GATE})
    tell(connection, row, "campaign.retried", now, cycle=cycle.number, step=StepName.MERGE.value)
    return row


def _merged(connection: Connection, cycle: CycleRow) -> bool:
    """Whether a cycle has ended, and has both a merged model and a gate decision."""
    if cycle.status not in {CycleStatus.COMPLETED, CycleStatus.FAILED}:
        return False
    steps = cycle_rows.steps(connection, cycle.campaign_seq, [cycle.number])
    done = {each.step for each in steps if each.status == StepStatus.DONE}
    return {StepName.MERGE.value, StepName.GATE.value} <= done


def _cycle(connection: Connection, row: CampaignRow, number: int) -> CycleRow:
    cycle = cycle_rows.get(connection, row.seq, number)
    if cycle is None:
        raise NotFoundError(f"Campaign {row.name} has no cycle {number} (cycles so far: {row.cycles}).")
    return cycle
