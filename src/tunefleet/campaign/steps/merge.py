"""`merge`: the chosen adapter and its base become one model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from tunefleet.campaign.contract import Base, Candidate, CycleFailed, Later, Outcome, Repeatable, StepContext
from tunefleet.campaign.hub_models import HUB, repo_of
from tunefleet.campaign.merging.runpod import Merging, RunPod, Waiting
from tunefleet.campaign.merging.runpod_wire import QUEUED
from tunefleet.campaign.order_cancellation import cost_of_merge
from tunefleet.campaign.steps.evaluate import of_candidate
from tunefleet.campaign.steps.submit import chosen_base
from tunefleet.campaign.task_client import Desk, document, inputs_of, runs_code
from tunefleet.lifecycle.cycle import StepName
from tunefleet.orchestrator.campaigns.step_progress import Activity

# What is written; the sum is made in float32.
_DTYPE: Final = "bfloat16"


class MergeStep(Repeatable):
    """Merges by a task on the fleet, or by a job of RunPod serverless."""

    name = StepName.MERGE

    async def plan(self, context: StepContext) -> Outcome:
        """Say what is merged."""
        candidate = context.outcome(StepName.SELECT)["candidate"]
        default = "runpod" if context.settings.use_runpod else "fleet"
        return {
            "candidate": candidate,
            "needed": candidate["form"] == "adapter",
            "on": context.spec.merge.on or default,
        }

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Merge, unless the candidate is a whole model."""
        candidate, desk = Candidate(**intent["candidate"]), Desk(context)
        if not intent["needed"]:
            await context.log(f"{candidate.label} is a whole model: nothing is merged, it is taken as it is")
            return await _as_it_is(desk, candidate)
        base = chosen_base(context)
        if intent["on"] == "runpod":
            return await _on_runpod(context, candidate, base)
        blocks, _ = of_candidate(context.spec, base, candidate)
        body = {"taskType": "merge", **blocks, "merge": {"dtype": _DTYPE, "verify": context.spec.merge.verify}}
        name = f"{context.state.name}-{context.state.number}-merge"
        (task,) = await desk.run("merge", document(name, body), inputs_of(name, base))
        return {**await _made_by(desk, task.id), "form": "model"}


async def _on_runpod(context: StepContext, candidate: Candidate, base: Base) -> Outcome | Later:
    if candidate.on_fleet:
        raise CycleFailed(
            f"RunPod merges what is on the hub, and {candidate.label} is on this server.", hint="Write merge.on: fleet."
        )
    endpoint = RunPod(context.settings, now=context.clock.wall)
    kept: dict[str, Any] = dict(context.state.kept or {})
    known = Merging(**kept).of(candidate.ref, repo_of(base, "RunPod"), context.state.retried, candidate.revision)

    async def keep(merging: Merging) -> None:
        await context.book.keep(context.state, asdict(merging))

    try:
        code = runs_code(context.spec, base)
        # What was decided about the cycle's model before: somebody asks for another merge of the same two.
        anew = StepName.GATE in context.state.outcomes
        found = await endpoint.merge(
            known, keep, _Purse(context), private=context.spec.publish.private, code=code, anew=anew
        )
    finally:
        await endpoint.close()
    if isinstance(found, Waiting):
        if found.status != QUEUED:
            await context.book.report(context.state, Activity("merging", of=f"the job {found.job} at RunPod"))
        return Later(context.clock.wall() + found.again_s, f"the job {found.job} at RunPod is {found.status}")
    proved = {True: ", proved by a forward pass", False: "; it was too large there for a proof", None: ""}
    await context.log(f"RunPod has merged {candidate.label} into {found.repo}{proved[found.verified]}")
    return {"url": f"hf://{found.repo}", "form": "model", "job": found.job}


class _Purse:
    """The campaign's."""

    def __init__(self, context: StepContext) -> None:
        self._context = context

    async def check(self, seconds: float) -> None:
        budget = await self._context.book.budget(self._context.state, ordered=True)
        budget.check_merge(self._context.spec, seconds)

    async def pay(self, job: str, seconds: float) -> None:
        state = self._context.state
        for entry in cost_of_merge(self._context.spec.budget, f"{state.order_key}/merge/{job}", seconds):
            await self._context.book.spend(state, entry.what, entry.amount, entry.key)


async def _as_it_is(desk: Desk, candidate: Candidate) -> dict[str, Any]:
    if candidate.on_fleet:
        return {**await _made_by(desk, candidate.ref), "form": "model"}
    return {"url": f"{HUB}{candidate.ref}", "form": "model", "taken": candidate.ref, "revision": candidate.revision}


async def _made_by(desk: Desk, task_id: str) -> dict[str, Any]:
    artifact = await desk.left(task_id, "model")
    return {"task_id": task_id, "artifact_id": artifact.id, "digest": artifact.digest}
