"""`sleep`: when the next cycle may open; sampled once, from the end of this one, and stored."""

from __future__ import annotations

import random
from typing import Final

from tunefleet.campaign.contract import Later, Outcome, StepContext
from tunefleet.lifecycle.cycle import StepName
from tunefleet.orchestrator.notifications.messages import spell_until
from tunefleet.settings import CampaignSettings
from tunefleet.spec.documents.campaign_document import CampaignSpec, RunIntervalsSpec

_HOUR_S: Final = 3600.0
_DAY_S: Final = 86_400.0


class SleepStep:
    """Sets the start time; the repository opens the next cycle then."""

    name = StepName.SLEEP

    async def plan(self, context: StepContext) -> Outcome:
        """Sample the duration, from now."""
        slept_s = draw_s(interval_of(context.spec, context.settings), context.state.order_key)
        return {"next_at": context.clock.wall() + slept_s, "slept_s": slept_s}

    async def reconcile(self, context: StepContext, intent: Outcome) -> Outcome | Later | None:
        """Return the stored time: it is not sampled again."""
        return await self.act(context, intent)

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Return the stored time."""
        left = spell_until(float(intent["next_at"]), context.clock.wall())
        await context.log(f"the cycle is complete; the next one opens in {left}")
        return intent


def interval_of(spec: CampaignSpec, settings: CampaignSettings) -> RunIntervalsSpec:
    """Return the interval of a campaign: its own, else the one from the environment."""
    return spec.run_intervals or RunIntervalsSpec(
        min_days=settings.min_days,
        max_days=settings.max_days,
        min_hours=settings.min_hours,
        max_hours=settings.max_hours,
    )


def draw_s(interval: RunIntervalsSpec, key: str) -> float:
    """Return the seconds to sleep: a random number of days plus a random number of hours."""
    # Seeded with the order's key: a crash before the plan is stored cannot change the result.
    generator = random.Random(f"interval:{key}")
    days = generator.uniform(interval.min_days, interval.max_days)
    hours = generator.uniform(interval.min_hours, interval.max_hours)
    return days * _DAY_S + hours * _HOUR_S
