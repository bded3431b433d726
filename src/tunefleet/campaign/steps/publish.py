"""`publish`: the promoted model to where the campaign says; nothing for one that the gate has refused."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from tunefleet.campaign import places
from tunefleet.campaign.contract import Later, Outcome, StepContext
from tunefleet.campaign.steps.repeatable import Repeatable
from tunefleet.lifecycle.cycle import StepName
from tunefleet.publishing.campaign_card import Story, write_card


class PublishStep(Repeatable):
    """Publishes a folder whole; published again, it is the same."""

    name = StepName.PUBLISH

    async def plan(self, context: StepContext) -> Outcome:
        """Say where it goes."""
        to = places.place_of(context) if bool(context.outcome(StepName.GATE)["passed"]) else None
        if to is None or "artifact_id" not in context.outcome(StepName.MERGE):
            return {"to": to}
        # It was looked at when the cycle began, unless the campaign names another place by now.
        if context.outcome(StepName.DATA).get("to") != to:
            await places.check(context, to)
        return {"to": to}

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Fetch the model, and put it there with its card."""
        merged, to = context.outcome(StepName.MERGE), intent["to"]
        if to is None:
            return {"url": merged.get("url")}
        if "artifact_id" not in merged:
            await context.log(f"{to} gets nothing: the model is at {merged['url']} already, and not on this server")
            return {"url": merged["url"]}
        place = await places.opened(context, to)
        with tempfile.TemporaryDirectory(prefix="tunefleet-publish-") as folder:
            await context.client.artifacts.fetch(merged["artifact_id"], folder)
            await asyncio.to_thread(write_card, Path(folder), _story(context))
            where = await asyncio.to_thread(place.put, Path(folder), lambda _: None)
        await context.log(f"published: {where}")
        return {"url": to, "where": where}


def _story(context: StepContext) -> Story:
    data, order = context.outcome(StepName.DATA), context.outcome(StepName.SUBMIT)
    chosen, measured = context.outcome(StepName.SELECT), context.outcome(StepName.EVALUATE)
    chunk: dict[str, Any] = data["chunk"]
    rows = f"{chunk['rows']:,} rows, {data['index'] + 1} of {data['chunks']} in epoch {data['epoch']}"
    lineage = {
        "campaign": f"{context.state.name}, cycle {context.state.number}",
        "base": f"`{context.spec.model_repo}`",
        "began with": f"`{order['base']['repo']}`",
        "chunk": f"{rows}, sha256 `{chunk['digest']}`",
        "task": f"`{order['ticket']}` at {order['provider']}",
        "candidate": f"`{chosen['candidate']['name']}`",
        "held-out rows": f"{data['test']['rows']:,} rows, sha256 `{data['test']['digest']}`",
        "evaluation": f"task `{chosen['evaluation']['task_id']}`",
        "model": f"sha256 `{context.outcome(StepName.MERGE)['digest']}`",
    }
    models = {"base": measured["base"], "promoted before": measured["promoted"], "this model": chosen["evaluation"]}
    figures = {name: each["metrics"] for name, each in models.items() if each is not None}
    return Story(context.state.name, context.spec.model_repo, lineage, figures, context.outcome(StepName.GATE))
