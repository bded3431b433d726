"""`publish`: publish the promoted model to the campaign's target; nothing if the gate refused it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tunefleet.campaign import publish_targets
from tunefleet.campaign.contract import Candidate, Later, Outcome, Repeatable, StepContext
from tunefleet.campaign.publish_targets import HUB
from tunefleet.campaign.scratch_folder import step_folder
from tunefleet.campaign.service.step_progress import Activity
from tunefleet.integrations.publishing import hub
from tunefleet.integrations.publishing.card import Story, write_campaign_card
from tunefleet.lifecycle.cycle import StepName


class PublishStep(Repeatable):
    """Publishes a complete folder; publishing it again has the same result."""

    name = StepName.PUBLISH

    async def plan(self, context: StepContext) -> Outcome:
        """Plan the target."""
        merged = context.outcome(StepName.MERGE)
        there = "artifact_id" not in merged and "taken" not in merged
        to = publish_targets.place_of(context, there=there) if bool(context.outcome(StepName.GATE)["passed"]) else None
        if to is None or _stays(merged, to):
            return {"to": to}
        # Checked when the cycle started, unless the campaign's target has changed since.
        if context.outcome(StepName.DATA).get("to") != to:
            await publish_targets.check(context, to)
        return {"to": to}

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Download the model, and publish it with its model card."""
        merged, to = context.outcome(StepName.MERGE), intent["to"]
        if to is None:
            return {"url": merged.get("url")}
        if _stays(merged, to):
            await context.log(f"not published to {to}: the model is already at {merged['url']}, and not on this server")
            return {"url": merged["url"]}
        async with step_folder(context, "publish") as folder:
            await _fetch(context, merged, folder)
            await asyncio.to_thread(write_campaign_card, folder, _story(context))
            where = await publish_targets.put(context, to, folder)
        await context.log(f"published: {where}")
        return {"url": to, "where": where}


def _stays(merged: Outcome, to: str) -> bool:
    """Whether a model is already at its target: merged into it, or taken from it."""
    return "artifact_id" not in merged and merged["url"] == to


async def _fetch(context: StepContext, merged: Outcome, folder: Path) -> None:
    if "artifact_id" in merged:
        await publish_targets.fetch(context, merged["artifact_id"], folder)
        return
    # Downloaded at the evaluated commit: its owner may have changed the repository since.
    await context.repository.report(context.state, Activity("downloading", of=merged["url"]))
    keys = publish_targets.keys(context.settings)
    await asyncio.to_thread(hub.fetch, merged["url"].removeprefix(HUB), merged.get("revision"), folder, keys)


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
        "candidate": f"`{Candidate(**chosen['candidate']).label}`",
        "held-out rows": f"{data['test']['rows']:,} rows, sha256 `{data['test']['digest']}`",
        "evaluation": f"task `{chosen['evaluation']['task_id']}`",
        "model": _model_line(context.outcome(StepName.MERGE)),
    }
    models = {"base": measured["base"], "promoted before": measured["promoted"], "this model": chosen["evaluation"]}
    figures = {name: each["metrics"] for name, each in models.items() if each is not None}
    return Story(context.state.name, context.spec.model_repo, lineage, figures, context.outcome(StepName.GATE))


def _model_line(merged: Outcome) -> str:
    if "digest" in merged:
        return f"sha256 `{merged['digest']}`"
    if "taken" not in merged:
        return f"`{merged['url']}`, merged there"
    return f"`{merged['url']}` as it is, commit `{merged['revision']}`"
