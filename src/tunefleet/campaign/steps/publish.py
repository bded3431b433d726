"""`publish`: the promoted model to where the campaign says; nothing for one that the gate has refused."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from tunefleet.campaign.contract import Later, Outcome, StepContext
from tunefleet.campaign.steps.repeatable import Repeatable
from tunefleet.lifecycle.cycle import StepName
from tunefleet.publishing.targets import Wishes, target
from tunefleet.settings import PublishSettings, load


class PublishStep(Repeatable):
    """Publishes a folder whole; published again, it is the same."""

    name = StepName.PUBLISH

    async def plan(self, context: StepContext) -> Outcome:
        """Say where it goes."""
        to = context.spec.publish.to
        wanted = to != "none" and bool(context.outcome(StepName.GATE)["passed"])
        return {"to": to.replace("{cycle}", str(context.state.number)) if wanted else None}

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Fetch the model, and put it there."""
        merged, to = context.outcome(StepName.MERGE), intent["to"]
        if to is None or "artifact_id" not in merged:
            return {"url": merged.get("url")}
        # A later cycle, and a later try, write over what this campaign has put there before.
        again = context.state.number > 0 or context.state.tries > 0
        wishes = Wishes(private=context.spec.publish.private and to.startswith("hf://"), force=again)
        place = await asyncio.to_thread(target, to, wishes, load(PublishSettings))
        with tempfile.TemporaryDirectory(prefix="tunefleet-publish-") as folder:
            await context.client.artifacts.fetch(merged["artifact_id"], folder)
            where = await asyncio.to_thread(place.put, Path(folder), lambda _: None)
        await context.log(f"published: {where}")
        return {"url": to, "where": where}
