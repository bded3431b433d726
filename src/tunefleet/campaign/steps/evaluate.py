"""`evaluate`: evaluate base, promoted model and every candidate on the same eval rows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from tunefleet.campaign import data_documents
from tunefleet.campaign.contract import Base, Candidate, CycleFailed, Later, NeedsYou, Outcome, Repeatable, StepContext
from tunefleet.campaign.steps import gate
from tunefleet.campaign.steps.submit import chosen_base, original
from tunefleet.campaign.task_client import (
    CampaignTaskClient,
    TaskFailed,
    digest_of,
    document,
    inputs_of,
    model_of,
    result_of,
)
from tunefleet.lifecycle.cycle import StepName
from tunefleet.spec.documents.campaign_document import CampaignSpec
from tunefleet.spec.tasks.evaluate_task import ITEMS_FOLDER

# After this many retries, an out-of-memory or a timeout is attributed to the candidate, not to the machine.
_TRIES: Final = 2


class EvaluateStep(Repeatable):
    """Runs `evaluate` tasks, and reuses evaluations of earlier cycles."""

    name = StepName.EVALUATE

    async def plan(self, context: StepContext) -> Outcome:
        """Plan which models are evaluated."""
        base = chosen_base(context)
        return {
            "test": context.outcome(StepName.DATA)["test"],
            "base": asdict(original(context)),
            "promoted": None if base.version is None else asdict(base),
            "began_with": asdict(base),
            "candidates": context.outcome(StepName.WAIT)["candidates"],
        }

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Evaluate all of them concurrently."""
        runner, spec, test = CampaignTaskClient(context), context.spec, intent["test"]
        began_with = Base(**intent["began_with"])
        wanted: dict[str, tuple[dict[str, Any], Base]] = {"base": _of_model(spec, Base(**intent["base"]))}
        if intent["promoted"] is not None:
            wanted["promoted"] = _of_model(spec, Base(**intent["promoted"]))
        candidates = [Candidate(**each) for each in intent["candidates"]]
        for number, candidate in enumerate(candidates):
            if candidate.fault is not None:
                continue
            wanted[f"candidate-{number}"] = of_candidate(spec, began_with, candidate)
        found = await asyncio.gather(
            *(_measured(runner, spec, test, what, *model) for what, model in wanted.items()), return_exceptions=True
        )
        by_name = dict(zip(wanted, found, strict=True))
        for name, outcome in by_name.items():
            # A candidate that cannot be evaluated is left out; the models that it is compared with are required.
            is_candidate = name.startswith("candidate")
            if isinstance(outcome, BaseException) and not (is_candidate and _leave_out(outcome, context.state.tries)):
                raise outcome
        measured = {name: each for name, each in by_name.items() if not isinstance(each, BaseException)}
        of_candidates = [measured.get(f"candidate-{number}") for number in range(len(candidates))]
        left_out = [
            f"{each.label}: {each.fault or by_name[f'candidate-{number}']}"
            for number, each in enumerate(candidates)
            if of_candidates[number] is None
        ]
        for text in left_out:
            await context.log(f"a candidate cannot be evaluated and is skipped: {text}")
        _check_some(of_candidates, left_out)
        return {
            "metric": spec.gate.metric,
            "base": measured["base"],
            "promoted": measured.get("promoted"),
            "candidates": of_candidates,
        }


def _leave_out(error: BaseException, tries: int) -> bool:
    """Whether to leave a candidate out: not because of a lost or busy worker, since it was paid for."""
    if isinstance(error, TaskFailed):
        return not error.transient and (tries >= _TRIES or not error.busy)
    return isinstance(error, CycleFailed)


def _check_some(measured: list[dict[str, Any] | None], left_out: list[str]) -> None:
    """Raise if there is no candidate to select: the models are paid for, so a user has to decide."""
    if gate.best([None if each is None else float(each["loss"]) for each in measured]) is not None:
        return
    why = " ".join(left_out) or "No eval loss is a finite, non-negative number."
    raise NeedsYou(
        f"None of the {len(measured)} candidates can be evaluated. {why}",
        hint="Fix the cause first. With `--from upload` the command orders again, and you pay for it again.",
    )


def of_candidate(spec: CampaignSpec, base: Base, candidate: Candidate) -> tuple[dict[str, Any], Base]:
    """Return the spec blocks of a candidate's model, and its base."""
    if candidate.form == "model":
        if candidate.on_fleet:
            return _of_model(spec, Base(repo=spec.model_repo, task_id=candidate.ref, foreign=base.foreign))
        return _of_model(spec, Base(repo=candidate.ref, revision=candidate.revision, foreign=True))
    blocks = model_of(spec, base)
    adapter = {"taskId": candidate.ref} if candidate.on_fleet else {"path": candidate.ref}
    if candidate.revision is not None:
        adapter["revision"] = candidate.revision
    blocks["model"]["adapters"] = [adapter]
    return blocks, base


def _of_model(spec: CampaignSpec, base: Base) -> tuple[dict[str, Any], Base]:
    return model_of(spec, base), base


async def _measured(
    runner: CampaignTaskClient,
    spec: CampaignSpec,
    test: Mapping[str, Any],
    what: str,
    blocks: Mapping[str, Any],
    base: Base,
) -> dict[str, Any]:
    body = {
        "taskType": "evaluate",
        **blocks,
        "evaluations": _evaluations(spec, test),
        "interval": {
            "confidence": spec.gate.confidence,
            "resamples": spec.evaluate.resamples,
            "seed": spec.random_seed,
        },
        **_resources(spec),
    }
    name = f"campaign-evaluation-{digest_of(body, base.digest)[:24]}"
    leaves = {name: (ITEMS_FOLDER,)}
    (task,) = await runner.shared(what, document(name, body), inputs_of(name, base), leaves=leaves)
    metrics = result_of(task)["metrics"]
    return {"task_id": task.id, "metrics": metrics, "loss": metrics["loss"]["value"]}


def _evaluations(spec: CampaignSpec, test: Mapping[str, Any]) -> list[dict[str, Any]]:
    data: dict[str, Any] = {"artifact": test["artifact_id"], **data_documents.columns(spec)}
    if spec.evaluate.max_rows is not None:
        data["max_samples"] = spec.evaluate.max_rows
    found: list[dict[str, Any]] = [
        {
            "type": "loss",
            "data": data,
            "max_seq_length": spec.evaluate.max_seq_length,
            "batch_size": spec.evaluate.batch_size,
        }
    ]
    if spec.gate.metric == "accuracy":
        found.append({"type": "exact_match", "data": data, "generation": {"max_tokens": spec.evaluate.max_tokens}})
    return found


def _resources(spec: CampaignSpec) -> dict[str, Any]:
    resources = spec.resources.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {"resources": resources} if resources else {}
