"""`merge`: merge the selected adapter into its base."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from tunefleet.campaign.contract import Base, Candidate, CycleFailed, Later, Outcome, Repeatable, StepContext
from tunefleet.campaign.order_cancellation import cost_of_merge
from tunefleet.campaign.publish_targets import HUB, repo_of
from tunefleet.campaign.runpod import QUEUED, Merging, RunPod, Waiting
from tunefleet.campaign.service.step_progress import Activity
from tunefleet.campaign.steps.evaluate import of_candidate
from tunefleet.campaign.steps.submit import chosen_base
from tunefleet.campaign.task_client import CampaignTaskClient, document, inputs_of, runs_code
from tunefleet.lifecycle.cycle import StepName

# Data type of the written weights; they are added in float32.
_DTYPE: Final = "bfloat16"


class MergeStep(Repeatable):
    """Merges with a task on the fleet, or with a job on RunPod serverless."""

    name = StepName.MERGE

    async def plan(self, context: StepContext) -> Outcome:
        """Plan what is merged, and where."""
        candidate = context.outcome(StepName.SELECT)["candidate"]
        default = "runpod" if context.settings.use_runpod else "fleet"
        return {
            "candidate": candidate,
            "needed": candidate["form"] == "adapter",
            "on": context.spec.merge.on or default,
        }

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Merge, unless the candidate is a full model."""
        candidate, runner = Candidate(**intent["candidate"]), CampaignTaskClient(context)
        if not intent["needed"]:
            await context.log(f"{candidate.label} is a full model and is used without a merge")
            return await _as_it_is(runner, candidate)
        base = chosen_base(context)
        if intent["on"] == "runpod":
            return await _on_runpod(context, candidate, base)
        blocks, _ = of_candidate(context.spec, base, candidate)
        body = {"taskType": "merge", **blocks, "merge": {"dtype": _DTYPE, "verify": context.spec.merge.verify}}
        name = f"{context.state.name}-{context.state.number}-merge"
        (task,) = await runner.run("merge", document(name, body), inputs_of(name, base))
        return {**await _made_by(runner, task.id), "form": "model"}


async def _on_runpod(context: StepContext, candidate: Candidate, base: Base) -> Outcome | Later:
    if candidate.on_fleet:
        raise CycleFailed(
            f"RunPod merges models on the Hub, but {candidate.label} is on this server.", hint="Set `merge.on: fleet`."
        )
    endpoint = RunPod(context.settings, now=context.clock.wall)
    kept: dict[str, Any] = dict(context.state.kept or {})
    known = Merging(**kept).of(candidate.ref, repo_of(base, "RunPod"), context.state.retried, candidate.revision)

    async def keep(merging: Merging) -> None:
        await context.repository.keep(context.state, asdict(merging))

    try:
        code = runs_code(context.spec, base)
        # With a gate decision this is a repeated merge (`remerge`): the existing result must not be reused.
        again = StepName.GATE in context.state.outcomes
        found = await endpoint.merge(
            known, keep, _CampaignBudget(context), private=context.spec.publish.private, code=code, again=again
        )
    finally:
        await endpoint.close()
    if isinstance(found, Waiting):
        if found.status != QUEUED:
            await context.repository.report(context.state, Activity("merging", of=f"the job {found.job} at RunPod"))
        return Later(context.clock.wall() + found.again_s, f"the job {found.job} at RunPod is {found.status}")
    verified = {True: ", verified by a forward pass", False: "; too large there for verification", None: ""}
    await context.log(f"RunPod has merged {candidate.label} into {found.repo}{verified[found.verified]}")
    return {"url": f"hf://{found.repo}", "form": "model", "job": found.job}


class _CampaignBudget:
    """The campaign's budget."""

    def __init__(self, context: StepContext) -> None:
        self._context = context

    async def check(self, seconds: float) -> None:
        budget = await self._context.repository.budget(self._context.state, ordered=True)
        budget.check_merge(self._context.spec, seconds)

    async def pay(self, job: str, seconds: float) -> None:
        state = self._context.state
        for entry in cost_of_merge(self._context.spec.budget, f"{state.order_key}/merge/{job}", seconds):
            await self._context.repository.spend(state, entry.what, entry.amount, entry.key)


async def _as_it_is(runner: CampaignTaskClient, candidate: Candidate) -> dict[str, Any]:
    if candidate.on_fleet:
        return {**await _made_by(runner, candidate.ref), "form": "model"}
    return {"url": f"{HUB}{candidate.ref}", "form": "model", "taken": candidate.ref, "revision": candidate.revision}


async def _made_by(runner: CampaignTaskClient, task_id: str) -> dict[str, Any]:
    artifact = await runner.left(task_id, "model")
    return {"task_id": task_id, "artifact_id": artifact.id, "digest": artifact.digest}
