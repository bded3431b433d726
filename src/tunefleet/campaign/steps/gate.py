"""`select` and `gate`: choose the best candidate, and decide on its promotion, from our own evaluations."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tunefleet.analysis.evaluation.comparison import Difference, compare
from tunefleet.campaign.contract import Later, Misconfigured, Outcome, Repeatable, StepContext, StepFailed
from tunefleet.campaign.scratch_folder import step_folder
from tunefleet.campaign.task_client import result_of
from tunefleet.errors import NotFoundError
from tunefleet.lifecycle.cycle import StepName
from tunefleet.spec.documents.campaign_document import CampaignGateSpec
from tunefleet.spec.tasks.evaluate_task import ITEMS_FOLDER

# For a candidate that is the same model as the one that it is compared with.
_SAME: Final = Difference(0.0, 0.0, 0.0, "the same evaluation", None, "none")


class GateStep(Repeatable):
    """Decides on promotion; `record` promotes."""

    name = StepName.GATE

    async def plan(self, context: StepContext) -> Outcome:
        """Plan which evaluations are compared."""
        measured = context.outcome(StepName.EVALUATE)
        against = {name: measured[name]["task_id"] for name in ("base", "promoted") if measured[name] is not None}
        return {
            "candidate": context.outcome(StepName.SELECT)["evaluation"]["task_id"],
            "against": against,
        }

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Compare, and decide."""
        named = [intent["candidate"], *intent["against"].values()]
        results = {task: result_of(await context.client.tasks.get(task)) for task in dict.fromkeys(named)}
        async with step_folder(context, "gate") as folder:
            items = {task: await _items(context, task, folder / task) for task in results}
            for result in results.values():
                check_measured(context.spec.gate, result["metrics"])
            differences, higher = await asyncio.to_thread(_differences, intent, context.spec.gate, results, items)
        decision = combine(
            [decide(each, differences[each.metric], higher_is_better=higher[each.metric]) for each in context.spec.gate]
        )
        await context.log(decision.reason)
        return decision.as_json()


async def _items(context: StepContext, task_id: str, folder: Path) -> Path | None:
    try:
        return await context.client.tasks.fetch_output(task_id, ITEMS_FOLDER, folder)
    except NotFoundError:
        return None  # they were removed: the decision says that the models cannot be compared


def check_measured(wanted: Sequence[CampaignGateSpec], metrics: Mapping[str, Any]) -> None:
    """Check that an evaluation has the metrics of all conditions; those of lm-eval are known only after it.

    Raises:
        Misconfigured: If it lacks one.
    """
    for each in wanted:
        if each.metric not in metrics:
            raise Misconfigured(
                f"The gate's metric {each.metric} is not measured.",
                hint=f"Choose {', '.join(sorted(metrics))}, or repeat the evaluation with `--from evaluate`.",
            )


def _differences(
    intent: Outcome,
    wanted: Sequence[CampaignGateSpec],
    results: Mapping[str, Mapping[str, Any]],
    items: Mapping[str, Path | None],
) -> tuple[dict[str, dict[str, Difference | None]], dict[str, bool]]:
    """Return the candidate's differences, metric → model, and whether more of a metric is better."""

    def find(task: str, file: str) -> Path | None:
        root = items[task]
        return None if root is None else root / Path(file).name

    candidate = intent["candidate"]
    found: dict[str, dict[str, Difference | None]] = {each.metric: {} for each in wanted}
    for name, task in intent["against"].items():
        same = task == candidate
        compared = [] if same else compare({task: results[task], candidate: results[candidate]}, find)
        rows = {row.metric: row.differences[1] for row in compared}
        for metric, by_model in found.items():
            by_model[name] = _SAME if same else rows[metric]
    measured = results[candidate]["metrics"]
    return found, {metric: bool(measured[metric]["higher_is_better"]) for metric in found}


@dataclass(frozen=True, slots=True)
class Gain:
    """How much better a candidate is than another model.

    Args:
        value: In units of the metric; above 0 is better.
        low: Lower bound of its confidence interval; None if there is none.
    """

    value: float
    low: float | None
    high: float | None
    passed: bool
    why: str


@dataclass(frozen=True, slots=True)
class MetricDecision:
    """Whether a candidate meets a condition.

    Args:
        against: Name of the compared model → gain over it.
    """

    metric: str
    passed: bool
    reason: str
    against: Mapping[str, Gain]


@dataclass(frozen=True, slots=True)
class GateDecision:
    """Whether a candidate is promoted.

    Args:
        against: Name of the compared model → gain over it in the metric of the first condition.
        metrics: The decision on each condition.
    """

    passed: bool
    reason: str
    against: Mapping[str, Gain]
    metrics: Sequence[MetricDecision]

    def as_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dict."""
        return asdict(self)


def combine(decisions: Sequence[MetricDecision]) -> GateDecision:
    """Return the decision on a candidate, which must meet all conditions.

    Args:
        decisions: At least one, in the order of the conditions.
    """
    passed = all(each.passed for each in decisions)
    # If it is refused, only the conditions that it does not meet are the reason.
    reasons = [each for each in decisions if passed or not each.passed]
    named = [each.reason if len(decisions) == 1 else f"{each.metric}: {each.reason}" for each in reasons]
    return GateDecision(passed, " ".join(named), decisions[0].against, decisions)


def decide(
    wanted: CampaignGateSpec, differences: Mapping[str, Difference | None], *, higher_is_better: bool
) -> MetricDecision:
    """Decide whether a candidate meets a condition, which it must against every compared model.

    Args:
        differences: Name of a model → the candidate's metric minus the model's, paired row by row.
    """
    gains = {name: _gain(wanted, each, higher_is_better=higher_is_better) for name, each in differences.items()}
    refused = [f"{gain.why} the {name}" for name, gain in gains.items() if not gain.passed]
    if refused:
        return MetricDecision(wanted.metric, False, f"The candidate is {', and '.join(refused)}.", gains)
    if wanted.max_drop is not None:
        changes = ", ".join(f"{gain.value:+.4g} against the {name}" for name, gain in gains.items())
        reason = f"The candidate's {wanted.metric} is within the margin of {wanted.max_drop:g}: {changes}."
        return MetricDecision(wanted.metric, True, reason, gains)
    better = ", ".join(f"{gain.value:.4g} than the {name}" for name, gain in gains.items())
    return MetricDecision(wanted.metric, True, f"The candidate's {wanted.metric} is better by {better}.", gains)


def _gain(wanted: CampaignGateSpec, found: Difference | None, *, higher_is_better: bool) -> Gain:
    if found is None or found.low is None or found.high is None:
        return Gain(0.0 if found is None else found.value, None, None, False, "not comparable, row by row, with")
    sign = 1.0 if higher_is_better else -1.0
    # Perplexities differ by a factor, of which 1 is no difference.
    none = 1.0 if found.factor else 0.0
    value = sign * (found.value - none)
    low, high = sorted((sign * (found.low - none), sign * (found.high - none)))
    if not all(map(math.isfinite, (value, low, high))):
        return Gain(value, low, high, False, "not measurable against")
    if wanted.max_drop is not None:
        why = f"possibly worse by up to {-low:.4g}, more than {wanted.max_drop:g}, than"
        passed = low >= -wanted.max_drop
        return Gain(value, low, high, passed, "within the margin of" if passed else why)
    if low <= 0:
        return Gain(value, low, high, False, "not significantly better than")
    if value < wanted.min_gain:
        return Gain(value, low, high, False, f"better by {value:.4g} only, less than {wanted.min_gain:g}, than")
    return Gain(value, low, high, True, "better than")


def best(losses: Sequence[float | None], scores: Sequence[float | None] | None = None) -> int | None:
    """Return the index of the best candidate; None if none has an eval loss that is finite and not negative."""
    usable = [
        (_cost(scores, index), loss, index)
        for index, loss in enumerate(losses)
        if loss is not None and math.isfinite(loss) and loss >= 0
    ]
    return min(usable)[2] if usable else None


def _cost(scores: Sequence[float | None] | None, index: int) -> float:
    score = None if scores is None else scores[index]
    return math.inf if score is None or not math.isfinite(score) else -score


class SelectStep(Repeatable):
    """Selects a candidate; the provider's own scores are not used."""

    name = StepName.SELECT

    async def plan(self, context: StepContext) -> Outcome:
        """Plan the selection from the evaluations."""
        evaluated = context.outcome(StepName.EVALUATE)
        measured, metric = evaluated["candidates"], evaluated.get("metric", "loss")
        losses = [None if each is None else float(each["loss"]) for each in measured]
        if metric == "loss":
            return {"losses": losses, "chosen": best(losses)}
        scores = [None if each is None else _score(each["metrics"][metric]) for each in measured]
        return {"losses": losses, "metric": metric, "scores": scores, "chosen": best(losses, scores)}

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
