"""`select`: the candidate with the lowest held-out loss, as we have measured it."""

from __future__ import annotations

from tunefleet.campaign import gate
from tunefleet.campaign.contract import Later, Outcome, StepContext, StepFailed
from tunefleet.campaign.steps.repeatable import Repeatable
from tunefleet.lifecycle.cycle import StepName


class SelectStep(Repeatable):
    """Chooses; what a provider says of its models plays no part."""

    name = StepName.SELECT

    async def plan(self, context: StepContext) -> Outcome:
        """Choose among what was measured."""
        measured = context.outcome(StepName.EVALUATE)["candidates"]
        losses = [None if each is None else float(each["loss"]) for each in measured]
        return {"losses": losses, "chosen": gate.best(losses)}

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Return the chosen one."""
        chosen = intent["chosen"]
        if chosen is None:
            # `evaluate` has looked for that; the campaign waits for a person, and orders nothing.
            raise StepFailed("No candidate has a held-out loss that is a number and not negative.")
        candidate = context.outcome(StepName.WAIT)["candidates"][chosen]
        loss = intent["losses"][chosen]
        await context.log(f"{candidate['name']} is chosen: held-out loss {loss:.4f}")
        evaluation = context.outcome(StepName.EVALUATE)["candidates"][chosen]
        return {"candidate": candidate, "evaluation": evaluation, "loss": loss}
