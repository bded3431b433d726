"""`sleep`: when the next cycle may open; drawn once, counted from the end of this one, and stored."""

from __future__ import annotations

from tunefleet.campaign.contract import Later, Outcome, StepContext
from tunefleet.campaign.intervals import draw_s, interval_of
from tunefleet.lifecycle.cycle import StepName
from tunefleet.orchestrator.notifications.messages import spell_until


class SleepStep:
    """Says when it goes on; the book opens the next cycle then."""

    name = StepName.SLEEP

    async def plan(self, context: StepContext) -> Outcome:
        """Draw how long, from now."""
        slept_s = draw_s(interval_of(context.spec, context.settings), context.state.order_key)
        return {"next_at": context.clock.wall() + slept_s, "slept_s": slept_s}

    async def reconcile(self, context: StepContext, intent: Outcome) -> Outcome | Later | None:
        """Return what was drawn: it stays drawn."""
        return await self.act(context, intent)

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Return what was drawn."""
        left = spell_until(float(intent["next_at"]), context.clock.wall())
        await context.log(f"the cycle is complete; waiting for the next one: it opens in {left}")
        return intent
