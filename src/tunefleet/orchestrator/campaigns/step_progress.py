"""How far the current step of a cycle is: kept beside the cycle for whoever watches; nothing is decided by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import orjson

from tunefleet.db import Connection, wake
from tunefleet.db.campaigns import campaigns, cycles
from tunefleet.db.campaigns.cycles import CycleRow
from tunefleet.lifecycle.cycle import StepName
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.campaigns.cycle_state import CycleState
from tunefleet.orchestrator.campaigns.status import topic
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.views import moment
from tunefleet.schemas.campaign import ActivityView, Unit
from tunefleet.schemas.live import CampaignActivity


@dataclass(frozen=True, slots=True)
class Activity:
    """What a step does now.

    Args:
        what: In one word, such as `downloading`, `shuffling`, `uploading` or `merging`.
    """

    what: str
    done: int = 0
    total: int | None = None
    unit: Unit | None = None
    of: str | None = None


def put(connection: Connection, state: CycleState, activity: Activity, now: float) -> None:
    """Store how far a step is; dropped if somebody else has the campaign by now, or the cycle has moved on."""
    row = campaigns.by_id(connection, state.campaign_id)
    cycle = None if row is None or row.holder != state.holder else cycles.get(connection, row.seq, state.number)
    if cycle is not None and cycle.step == state.step:
        text = orjson.dumps({**asdict(activity), "at": now}).decode()
        cycles.change(connection, cycle, {"activity": text})
        wake(connection, topic(state.campaign_id))


async def going_on(
    core: Core, actor: Actor, told: Mapping[tuple[str, int], CampaignActivity]
) -> dict[tuple[str, int], CampaignActivity]:
    """Return what the running cycles of all campaigns do, by campaign and cycle."""
    may_read(actor)

    def operation(connection: Connection) -> dict[tuple[str, int], CampaignActivity]:
        found: dict[tuple[str, int], CampaignActivity] = {}
        for id_, name, line, row in cycles.running_in(connection, actor.project):
            now = CampaignActivity(
                campaign_id=id_, name=name, cycle=row.number, step=StepName(row.step), waiting=row.waiting,
                activity=shown(row), line=line,
            )  # fmt: skip
            before = told.get((id_, row.number))
            found[id_, row.number] = before if before == now else now
        return found

    return await core.read(operation)


def shown(cycle: CycleRow) -> ActivityView | None:
    """Show how far the current step of a cycle is; null if it has said nothing."""
    if cycle.activity is None:
        return None
    said = orjson.loads(cycle.activity)
    return ActivityView(**{**said, "at": moment(said["at"])})
