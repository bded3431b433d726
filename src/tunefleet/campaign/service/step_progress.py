"""Progress of a cycle's current step: for display only, no decision depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import orjson

from tunefleet.campaign.service.cycle_state import CycleState
from tunefleet.campaign.service.status import topic
from tunefleet.db import Connection, wake
from tunefleet.db.campaigns import campaigns, cycles
from tunefleet.db.campaigns.cycles import CycleRow
from tunefleet.lifecycle.cycle import StepName
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.views import to_datetime
from tunefleet.schemas.campaign import ActivityView, Unit
from tunefleet.schemas.live import CampaignActivity


@dataclass(frozen=True, slots=True)
class Activity:
    """What a step is doing now.

    Args:
        what: In one word, such as `downloading`, `shuffling`, `uploading` or `merging`.
    """

    what: str
    done: int = 0
    total: int | None = None
    unit: Unit | None = None
    of: str | None = None


def put(connection: Connection, state: CycleState, activity: Activity, now: float) -> None:
    """Store a step's progress; dropped if the campaign has another holder or the cycle has moved on."""
    row = campaigns.by_id(connection, state.campaign_id)
    cycle = None if row is None or row.holder != state.holder else cycles.get(connection, row.seq, state.number)
    if cycle is not None and cycle.step == state.step:
        text = orjson.dumps({**asdict(activity), "at": now}).decode()
        cycles.change(connection, cycle, {"activity": text})
        wake(connection, topic(state.campaign_id))


async def running_activity(
    core: ServerContext, actor: Actor, known: Mapping[tuple[str, int], CampaignActivity]
) -> dict[tuple[str, int], CampaignActivity]:
    """Return the activity of all running cycles, by campaign and cycle; unchanged entries keep their identity."""
    may_read(actor)

    def operation(connection: Connection) -> dict[tuple[str, int], CampaignActivity]:
        found: dict[tuple[str, int], CampaignActivity] = {}
        for id_, name, line, row in cycles.running_in(connection, actor.project):
            now = CampaignActivity(
                campaign_id=id_, name=name, cycle=row.number, step=StepName(row.step), waiting=row.waiting,
                activity=shown(row), line=line,
            )  # fmt: skip
            before = known.get((id_, row.number))
            found[id_, row.number] = before if before == now else now
        return found

    return await core.read(operation)


def shown(cycle: CycleRow) -> ActivityView | None:
    """Show the progress of a cycle's current step; None if it has reported none."""
    if cycle.activity is None:
        return None
    activity = orjson.loads(cycle.activity)
    return ActivityView(**{**activity, "at": to_datetime(activity["at"])})
