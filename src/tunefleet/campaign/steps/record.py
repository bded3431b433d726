"""`record`: register the model with its lineage, promoted or archived."""

from __future__ import annotations

from typing import Any, Final

from tunefleet.campaign.contract import Later, Outcome, Repeatable, StepContext
from tunefleet.campaign.publish_targets import HUB
from tunefleet.campaign.service.cycle_state import NewVersion
from tunefleet.integrations.trackers import catalog
from tunefleet.lifecycle.cycle import Stage, StepName
from tunefleet.settings import TrackingSettings, load

# Fields of a merge's outcome that locate the model.
_LOCATION_KEYS: Final = ("task_id", "artifact_id", "digest", "url", "revision")


class RecordStep(Repeatable):
    """Registers the model of the cycle."""

    name = StepName.RECORD

    async def plan(self, context: StepContext) -> Outcome:
        """Plan the stage of the model, and the trackers to notify."""
        passed = bool(context.outcome(StepName.GATE)["passed"])
        trackers = catalog.chosen(context.spec, load(TrackingSettings)).names
        return {"stage": (Stage.PROMOTED if passed else Stage.ARCHIVED).value, "trackers": list(trackers)}

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Register the model."""
        merged, decision = context.outcome(StepName.MERGE), context.outcome(StepName.GATE)
        location = {key: merged[key] for key in _LOCATION_KEYS if merged.get(key) is not None}
        published = context.outcome(StepName.PUBLISH).get("url")
        if published is not None and str(location.get("url", "")).startswith(HUB) and not published.startswith(HUB):
            # Keep the Hub URL as the main location: providers fetch the base of the next cycle from there.
            location = {**location, "published": published}
        elif published is not None and published != location.get("url"):
            location = {**location, "url": published}
            location.pop("revision", None)  # a commit of the source, not of the published copy
        made = NewVersion(
            stage=Stage(intent["stage"]),
            form=merged["form"],
            location=location,
            lineage=_lineage(context),
            evaluation={**context.outcome(StepName.EVALUATE), "gate": decision},
            reason=decision["reason"],
        )
        version = await context.repository.register(context.state, made)
        await context.log(f"version {version.version} is {version.stage.value}")
        # The outbox is filled in the transaction that stores this outcome, so that no tracker is missed after a crash.
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
