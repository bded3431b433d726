"""`wait`: wait until the provider's task has ended."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Final

from tunefleet.campaign import object_store, publish_targets
from tunefleet.campaign.contract import Later, NeedsYou, OrderFailed, Outcome, Repeatable, StepContext
from tunefleet.campaign.order_cancellation import cost_of_time
from tunefleet.campaign.publish_targets import with_form
from tunefleet.errors import UnreachableError
from tunefleet.lifecycle.cycle import StepName

# A task may wait in a queue and for its evaluation, in addition to the hours that it was ordered for.
_PATIENCE_S: Final = 86_400.0


class WaitStep(Repeatable):
    """Polls the task."""

    name = StepName.WAIT

    async def plan(self, context: StepContext) -> Outcome:
        """Plan which task is waited for."""
        return {"ticket": context.outcome(StepName.SUBMIT)["ticket"]}

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Poll the task once."""
        now, every_s = context.clock.wall(), context.settings.check_interval_s
        try:
            found = await context.provider.look(intent["ticket"])
        except UnreachableError as error:
            # The task continues without us: a failed poll is not a failure of the step.
            return _later(context, intent, now + every_s, f"{context.provider.name} does not respond: {error.message}")
        if found.state == "running":
            if found.activity is not None:
                await context.repository.report(context.state, found.activity)
            again_s = every_s if found.again_s is None else found.again_s
            return _later(context, intent, now + again_s, found.detail + _late(context, now))
        await object_store.clear(context)
        key = context.outcome(StepName.SUBMIT)["key"]
        for entry in cost_of_time(context.spec.budget, key, found.cost_s):
            await context.repository.spend(context.state, entry.what, entry.amount, entry.key)
        if found.state == "failed":
            raise OrderFailed(f"Task {intent['ticket']} at {context.provider.name} has failed: {found.detail}")
        if not found.candidates:
            # The models may be listed later. The task is paid for, so only a user may order again.
            raise NeedsYou(
                f"Task {intent['ticket']} at {context.provider.name} has succeeded, but lists no model.",
                hint="It is polled again. The command orders again instead, and you pay for it again.",
                verb="retry --from upload",
            )
        keys = publish_targets.keys(context.settings)
        try:
            candidates = await asyncio.gather(*(with_form(each, keys) for each in found.candidates))
        except UnreachableError as error:
            return _later(context, intent, now + every_s, f"the trained models cannot be inspected: {error.message}")
        await context.log(f"{context.provider.name}: {found.detail}; {len(candidates)} candidate(s)")
        return {
            "candidates": [asdict(each) for each in candidates],
            "detail": found.detail,
            "cost_s": found.cost_s,
        }


def _later(context: StepContext, intent: Outcome, until: float, why: str) -> Later:
    """Wait longer, up to a limit: a task that does not end is left to a user, and not ordered again.

    Raises:
        NeedsYou: If it should have ended more than a day ago.
    """
    placed_at, hours = context.outcome(StepName.SUBMIT).get("placed_at"), context.spec.hours_to_complete
    if placed_at is None or context.clock.wall() <= placed_at + hours * 3600.0 + _PATIENCE_S:
        return Later(until, why)
    raise NeedsYou(
        f"Task {intent['ticket']} at {context.provider.name} was ordered for {hours:g} hours, and is more than a "
        f"day overdue: {why}.",
        hint="Check it at the provider first. The command keeps waiting; with `--from upload` the task is cancelled "
        "and another one is ordered, and you pay for it.",
    )


def _late(context: StepContext, now: float) -> str:
    """Return a warning if the links to the rows have expired."""
    until = context.outcome(StepName.SUBMIT).get("links_until")
    if until is None or now < until:
        return ""
    end = f"`tunefleet campaign stop {context.state.name}`"
    return f"; the links to its rows have expired: it can no longer fetch them; {end} ends it"
