"""`select`: select the best candidate by the gate's metric, from our own evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunefleet.campaign.contract import Later, Outcome, Repeatable, StepContext, StepFailed
from tunefleet.campaign.steps import gate
from tunefleet.lifecycle.cycle import StepName


class SelectStep(Repeatable):
    """Selects a candidate; the provider's own scores are not used."""

    name = StepName.SELECT

    async def plan(self, context: StepContext) -> Outcome:
        """Plan the selection from the evaluations."""
        evaluated = context.outcome(StepName.EVALUATE)
        measured, metric = evaluated["candidates"], evaluated.get("metric", "loss")
        losses = [None if each is None else float(each["loss"]) for each in measured]
        if metric == "loss":
            return {"losses": losses, "chosen": gate.best(losses)}
        scores = [None if each is None else _score(each["metrics"][metric]) for each in measured]
        return {"losses": losses, "metric": metric, "scores": scores, "chosen": gate.best(losses, scores)}

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Return the selected candidate."""
        chosen = intent["chosen"]
        if chosen is None:
            # `evaluate` has already checked this; fail without ordering again.
            raise StepFailed("No candidate has an eval loss that is a finite, non-negative number.")
        candidate = context.outcome(StepName.WAIT)["candidates"][chosen]
        loss = intent["losses"][chosen]
        evaluation = context.outcome(StepName.EVALUATE)["candidates"][chosen]
        metric = intent.get("metric")
        other = "" if metric is None else f", {metric} {evaluation['metrics'][metric]['value']:.4f}"
        await context.log(f"{candidate['name']} is selected: eval loss {loss:.4f}{other}")
        return {"candidate": candidate, "evaluation": evaluation, "loss": loss}


def _score(metric: Mapping[str, Any]) -> float:
    """Return a metric's value, negated if lower is better."""
    return float(metric["value"]) * (1.0 if metric["higher_is_better"] else -1.0)
