"""The gate: better by enough than everything it is held against, and not by luck."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefleet.analysis.evaluation.comparison import Difference
from tunefleet.campaign.contract import Misconfigured
from tunefleet.campaign.steps import gate
from tunefleet.campaign.steps.gate import SelectStep
from tunefleet.lifecycle.cycle import StepName
from tunefleet.spec.documents.campaign_document import CampaignGateSpec

WANTED = CampaignGateSpec()


def difference(value: float, low: float | None, high: float | None) -> Difference:
    return Difference(value, low, high, "bootstrap", None, "none")


def test_a_lower_loss_is_promoted() -> None:
    found = gate.decide(WANTED, {"base": difference(-0.5, -0.7, -0.3)}, higher_is_better=False)
    assert found.passed
    assert found.against["base"].value == 0.5
    assert (found.against["base"].low, found.against["base"].high) == (0.3, 0.7)


def test_a_higher_accuracy_is_promoted() -> None:
    assert gate.decide(WANTED, {"base": difference(0.2, 0.1, 0.3)}, higher_is_better=True).passed
    assert not gate.decide(WANTED, {"base": difference(0.2, 0.1, 0.3)}, higher_is_better=False).passed


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (difference(-0.5, -1.1, 0.1), "not significantly better"),
        (difference(0.0, 0.0, 0.0), "not significantly better"),
        (difference(0.4, 0.3, 0.5), "not significantly better"),
        (difference(-0.5, None, None), "not comparable"),
        (None, "not comparable"),
        (difference(-math.inf, -math.inf, -1.0), "not measurable"),
    ],
)
def test_what_is_not_surely_better_is_refused(found: Difference | None, why: str) -> None:
    verdict = gate.decide(WANTED, {"base": found}, higher_is_better=False)
    assert not verdict.passed
    assert why in verdict.reason


def test_a_gain_below_the_margin_is_refused() -> None:
    wanted = CampaignGateSpec(min_gain=0.2)
    assert not gate.decide(wanted, {"base": difference(-0.1, -0.12, -0.08)}, higher_is_better=False).passed
    assert gate.decide(wanted, {"base": difference(-0.2, -0.3, -0.1)}, higher_is_better=False).passed


@pytest.mark.parametrize(
    ("found", "higher", "passed"),
    [
        (difference(-0.004, -0.009, 0.001), True, True),
        # Lower on average by less than the margin, but possibly by more.
        (difference(-0.004, -0.012, 0.004), True, False),
        (difference(0.05, 0.03, 0.07), True, True),
        (difference(0.0, 0.0, 0.0), True, True),
        (difference(0.004, -0.001, 0.009), False, True),
        (difference(0.03, 0.02, 0.04), False, False),
        (difference(0.0, None, None), True, False),
        # A perplexity differs by a factor.
        (Difference(1.004, 0.999, 1.009, "bootstrap", None, "none", factor=True), False, True),
        (Difference(1.004, 0.995, 1.013, "bootstrap", None, "none", factor=True), False, False),
    ],
)
def test_a_metric_may_not_drop_by_more_than_its_margin(found: Difference, higher: bool, passed: bool) -> None:
    wanted = CampaignGateSpec(metric="own_f1", max_drop=0.01)
    decision = gate.decide(wanted, {"base": found}, higher_is_better=higher)
    assert decision.passed is passed
    assert ("within the margin of 0.01" if passed else "the base") in decision.reason


def test_all_conditions_must_hold_and_those_that_do_not_are_the_reason() -> None:
    better = gate.decide(WANTED, {"base": difference(-0.5, -0.7, -0.3)}, higher_is_better=False)
    margin = CampaignGateSpec(metric="own_f1", max_drop=0.01)
    kept, dropped = (
        gate.decide(margin, {"base": difference(value, value - 0.005, value + 0.005)}, higher_is_better=True)
        for value in (0.0, -0.1)
    )
    assert gate.combine([better, kept]).passed
    refused = gate.combine([better, dropped]).as_json()
    assert not refused["passed"]
    assert refused["reason"] == (
        "own_f1: The candidate is possibly worse by up to 0.105, more than 0.01, than the base."
    )
    assert [(each["metric"], each["passed"]) for each in refused["metrics"]] == [("loss", True), ("own_f1", False)]
    assert refused["against"]["base"]["value"] == 0.5, "of the first condition"
    assert gate.combine([better]).reason == "The candidate's loss is better by 0.5 than the base."


def test_a_metric_that_was_not_measured_holds_the_campaign() -> None:
    with pytest.raises(Misconfigured, match=r"harness_acc is not measured"):
        gate.check_measured([CampaignGateSpec(metric="harness_acc")], {"loss": {}, "harness_parity_acc": {}})


def test_it_must_be_better_than_the_promoted_model_too() -> None:
    against = {"base": difference(-1.0, -1.2, -0.8), "promoted": difference(0.1, 0.05, 0.15)}
    verdict = gate.decide(WANTED, against, higher_is_better=False)
    assert not verdict.passed
    assert "promoted" in verdict.reason
    assert verdict.against["base"].passed


@given(st.lists(st.none() | st.floats(allow_nan=True, allow_infinity=True), max_size=8))
def test_the_best_candidate_has_the_lowest_loss_that_can_be_one(losses: list[float | None]) -> None:
    usable = [loss for loss in losses if loss is not None and math.isfinite(loss) and loss >= 0]
    chosen = gate.best(losses)
    if not usable:
        assert chosen is None
    else:
        assert chosen is not None
        assert losses[chosen] == min(usable)


def test_what_the_gate_measures_decides_before_the_loss() -> None:
    losses = [0.5, 0.4, 0.3, 0.2, math.nan]
    assert gate.best(losses, [0.8, 0.9, 0.9, math.nan, 1.0]) == 2
    assert gate.best(losses, [0.8, None, 0.1, 0.7, 1.0]) == 0
    assert gate.best([0.5, 0.4], [None, None]) == 1


async def test_the_candidate_is_chosen_by_what_the_gate_measures() -> None:
    def measured(loss: float, accuracy: float) -> dict[str, Any]:
        metrics = {"accuracy": {"value": accuracy, "higher_is_better": True}, "loss": {"value": loss}}
        return {"task_id": f"task-{loss}", "loss": loss, "metrics": metrics}

    lines: list[str] = []

    async def say(text: str) -> None:
        lines.append(text)

    async def chosen(metric: str) -> str:
        evaluated = {"metric": metric, "candidates": [measured(0.3, 0.5), None, measured(0.4, 0.75)]}
        outcomes = {
            StepName.EVALUATE: evaluated,
            StepName.WAIT: {"candidates": [{"name": name} for name in ("low", "none", "right")]},
        }
        context: Any = SimpleNamespace(outcome=outcomes.__getitem__, log=say)
        step = SelectStep()
        done = await step.act(context, await step.plan(context))
        assert isinstance(done, dict)
        return str(done["candidate"]["name"])

    assert (await chosen("loss"), await chosen("accuracy")) == ("low", "right")
    assert lines == [
        "low is selected: eval loss 0.3000", "right is selected: eval loss 0.4000, accuracy 0.7500"
    ]  # fmt: skip
