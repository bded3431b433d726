"""`merge`: the chosen adapter and its base become one model."""

from __future__ import annotations

from typing import Any

from tunefleet.campaign.contract import Candidate, Later, Outcome, StepContext
from tunefleet.campaign.desk import Desk, document, inputs_of
from tunefleet.campaign.steps.evaluate import of_candidate
from tunefleet.campaign.steps.repeatable import Repeatable
from tunefleet.campaign.steps.submit import chosen_base
from tunefleet.lifecycle.cycle import StepName


class MergeStep(Repeatable):
    """Merges by a task on the fleet."""

    name = StepName.MERGE

    async def plan(self, context: StepContext) -> Outcome:
        """Say what is merged."""
        candidate = context.outcome(StepName.SELECT)["candidate"]
        return {"candidate": candidate, "needed": candidate["form"] == "adapter"}

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Merge, unless the candidate is a whole model."""
        candidate, desk = Candidate(**intent["candidate"]), Desk(context)
        if not intent["needed"]:
            return await _as_it_is(desk, candidate)
        base = chosen_base(context)
        blocks, _ = of_candidate(context.spec, base, candidate)
        body = {"taskType": "merge", **blocks, "merge": {"verify": context.spec.merge.verify}}
        name = f"{context.state.name}-{context.state.number}-merge"
        (task,) = await desk.run("merge", document(name, body), inputs_of(name, base))
        return {**await _made_by(desk, task.id), "form": "model"}


async def _as_it_is(desk: Desk, candidate: Candidate) -> dict[str, Any]:
    if candidate.on_fleet:
        return {**await _made_by(desk, candidate.ref), "form": "model"}
    return {"url": f"hf://{candidate.ref}", "form": "model"}


async def _made_by(desk: Desk, task_id: str) -> dict[str, Any]:
    artifact = await desk.left(task_id, "model")
    return {"task_id": task_id, "artifact_id": artifact.id, "digest": artifact.digest}
