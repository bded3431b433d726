"""`wait`: until the provider's task is over."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Final

from tunefleet.campaign import object_store, publish_targets
from tunefleet.campaign.contract import Later, NeedsYou, OrderFailed, Outcome, Repeatable, StepContext
from tunefleet.campaign.hub_models import told_apart
from tunefleet.campaign.order_cancellation import cost_of_time
from tunefleet.errors import UnreachableError
from tunefleet.lifecycle.cycle import StepName

# A task may wait for its turn, and for its evaluation, beside the hours that it was ordered for.
_PATIENCE_S: Final = 86_400.0


class WaitStep(Repeatable):
    """Looks at the task now and then."""

    name = StepName.WAIT

    async def plan(self, context: StepContext) -> Outcome:
        """Say whose task is waited for."""
        return {"ticket": context.outcome(StepName.SUBMIT)["ticket"]}

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Look at the task once."""
        now, every_s = context.clock.wall(), context.settings.check_interval_s
        try:
            found = await context.provider.look(intent["ticket"])
        except UnreachableError as error:
            # The task goes on without us: a lost look is no failure.
            return _later(context, intent, now + every_s, f"{context.provider.name} does not answer: {error.message}")
        if found.state == "running":
            if found.activity is not None:
                await context.book.report(context.state, found.activity)
            again_s = every_s if found.again_s is None else found.again_s
            return _later(context, intent, now + again_s, found.detail + _late(context, now))
        await object_store.clear(context)
        key = context.outcome(StepName.SUBMIT)["key"]
        for entry in cost_of_time(context.spec.budget, key, found.cost_s):
            await context.book.spend(context.state, entry.what, entry.amount, entry.key)
        if found.state == "failed":
            raise OrderFailed(f"The task {intent['ticket']} at {context.provider.name} has failed: {found.detail}")
        if not found.candidates:
            # It may name them later; it is paid for, and nobody orders it again but a person.
            raise NeedsYou(
                f"The task {intent['ticket']} at {context.provider.name} has succeeded and names no model.",
                hint="It is looked at again; the command orders again instead, and is paid for again.",
                verb="retry --from upload",
            )
        keys = publish_targets.keys(context.settings)
        try:
            candidates = await asyncio.gather(*(told_apart(each, keys) for each in found.candidates))
        except UnreachableError as error:
            return _later(context, intent, now + every_s, f"what was made cannot be looked at: {error.message}")
        await context.log(f"{context.provider.name}: {found.detail}; {len(candidates)} candidate(s)")
        return {
            "candidates": [asdict(each) for each in candidates],
            "detail": found.detail,
            "cost_s": found.cost_s,
        }


def _later(context: StepContext, intent: Outcome, until: float, why: str) -> Later:
    """Wait for longer, but not for ever: what does not end is left to a person, and not ordered again.

    Raises:
        NeedsYou: If it should have ended long ago.
    """
    placed_at, hours = context.outcome(StepName.SUBMIT).get("placed_at"), context.spec.hours_to_complete
    if placed_at is None or context.clock.wall() <= placed_at + hours * 3600.0 + _PATIENCE_S:
        return Later(until, why)
    raise NeedsYou(
        f"The task {intent['ticket']} at {context.provider.name} was ordered for {hours:g} hours, and is not over more "
        f"than a day after them: {why}.",
        hint="Look at it there first. The command waits on; with `--from upload` at its end the task is cancelled, and "
        "another is ordered, and paid for.",
    )


def _late(context: StepContext, now: float) -> str:
    """Say that whoever has not fetched the rows by now cannot any more."""
    until = context.outcome(StepName.SUBMIT).get("links_until")
    if until is None or now < until:
        return ""
    end = f"`tunefleet campaign stop {context.state.name}`"
    return f"; the links to its rows have ended: if it has not fetched them, it cannot go on, and {end} ends it"
