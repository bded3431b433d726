"""`record`: the model goes into the registry, promoted or archived, with all that it was made of."""

from __future__ import annotations

from typing import Any, Final

from tunefleet.campaign.contract import Later, Outcome, Repeatable, StepContext
from tunefleet.campaign.hub_models import HUB
from tunefleet.integrations.trackers import catalog
from tunefleet.lifecycle.cycle import StepName
from tunefleet.lifecycle.model_version import Stage
from tunefleet.orchestrator.campaigns.cycle_state import NewVersion
from tunefleet.settings import TrackingSettings, load

# What of a merge says where its model is.
_WHERE: Final = ("task_id", "artifact_id", "digest", "url", "revision")


class RecordStep(Repeatable):
    """Registers the model of the cycle."""

    name = StepName.RECORD

    async def plan(self, context: StepContext) -> Outcome:
        """Say what becomes of it, and which trackers are told."""
        passed = bool(context.outcome(StepName.GATE)["passed"])
        trackers = catalog.chosen(context.spec, load(TrackingSettings)).names
        return {"stage": (Stage.PROMOTED if passed else Stage.ARCHIVED).value, "trackers": list(trackers)}

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Register it."""
        merged, verdict = context.outcome(StepName.MERGE), context.outcome(StepName.GATE)
        location = {key: merged[key] for key in _WHERE if merged.get(key) is not None}
        published = context.outcome(StepName.PUBLISH).get("url")
        if published is not None and str(location.get("url", "")).startswith(HUB) and not published.startswith(HUB):
            # Whoever trains it further fetches it from the hub.
            location = {**location, "published": published}
        elif published is not None and published != location.get("url"):
            location = {**location, "url": published}
            location.pop("revision", None)  # of what was published a copy of
        made = NewVersion(
            stage=Stage(intent["stage"]),
            form=merged["form"],
            location=location,
            lineage=_lineage(context),
            evaluation={**context.outcome(StepName.EVALUATE), "gate": verdict},
            reason=verdict["reason"],
        )
        version = await context.book.register(context.state, made)
        await context.log(f"version {version.version} is {version.stage.value}")
        # With this outcome it is stored that they are to be told: what they are told is derived from it.
        trackers = intent.get("trackers", [])
        return {"version": version.version, "stage": version.stage.value, "trackers": trackers}


def _lineage(context: StepContext) -> dict[str, Any]:
    data, order = context.outcome(StepName.DATA), context.outcome(StepName.SUBMIT)
    return {
        "chunk": {**data["chunk"], **{key: data[key] for key in ("epoch", "index", "chunks", "start", "stop")}},
        "test": data["test"],
        "order": {key: order[key] for key in ("key", "ticket", "provider")},
        "base": order["base"],
        "candidate": context.outcome(StepName.SELECT)["candidate"],
        "evaluation": context.outcome(StepName.SELECT)["evaluation"]["task_id"],
        "merge": context.outcome(StepName.MERGE),
    }
