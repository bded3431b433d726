"""What lm-eval has measured, in our words: units, intervals, and what two models are compared by."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tunefleet.analysis.evaluation import statistics
from tunefleet.analysis.evaluation.statistics import IntervalOptions, Metric
from tunefleet.spec.tasks.evaluate_task import EvaluationSpec


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Pair, scores
    pytest.importorskip("torch")

    from tunefleet.workloads.evaluation import scores
    from tunefleet.workloads.evaluation.summary import Pair


pytestmark = pytest.mark.torch

EVALUATION = EvaluationSpec.model_validate({"type": "lm_eval", "tasks": ["t"]})
WANTED = IntervalOptions()


def told(
    values: list[Any],
    value: float,
    *,
    how: str = "mean",
    error: float | str = 0.0,
    up: bool = True,
    taken: str = "none",
) -> dict[str, Any]:
    """Return what lm-eval says of a task `t` with a metric `m`."""
    samples = [
        {"doc_id": index, "filter": taken, "metrics": ["m"], "m": each, "doc_hash": f"h{index}"}
        for index, each in enumerate(values)
    ]
    return {
        "results": {"t": {"alias": "t", f"m,{taken}": value, f"m_stderr,{taken}": error}},
        "higher_is_better": {"t": {"m": up}},
        "n-samples": {"t": {"original": len(values), "effective": len(values)}},
        "samples": {"t": samples},
        "aggregations": {"t": {"m": how}},
    }


def only(result: dict[str, Any]) -> Metric:
    (metric,) = scores.metrics("t", result, WANTED, EVALUATION).values()
    return metric


@pytest.mark.parametrize("right", [0, 1, 150, 300])
def test_shares_of_right_answers_have_wilsons_interval(right: int) -> None:
    metric = only(told([1.0] * right + [0.0] * (300 - right), right / 300))
    wilson = statistics.wilson(right, 300, WANTED)
    assert (metric.low, metric.high, metric.method) == (wilson.low, wilson.high, "Wilson, 300 items")
    assert metric.low is not None
    assert metric.high is not None
    assert metric.low < metric.high
    assert metric.unit == "share"


def test_a_group_of_shares_has_wilsons_interval_of_all_its_items() -> None:
    result = told([0.0] * 10, 0.0)
    result["samples"] = {"a": result["samples"]["t"], "b": result["samples"]["t"][:5]}
    result |= {
        "group_subtasks": {"t": ["inner"], "inner": ["a", "b"]},
        "n-samples": {"a": {"effective": 10}, "b": {"effective": 5}},
    }
    metric = only(result)
    assert (metric.n, metric.method, metric.unit) == (15, "Wilson, 15 items", "share")
    assert scores.pairs(result, {"a": "a.jsonl"}, EVALUATION) == {}


@pytest.mark.parametrize(
    ("values", "value", "how", "up", "unit", "high"),
    [
        ([0.9, 1.0], 0.95, "mean", True, "share", 1.0),
        ([0.9, 1.0], 0.95, "mean", False, "1", 1.048),
        ([[1, 1], [0, 0]], 0.95, "matthews_corrcoef", True, "1", 1.048),
        ([[1, 1], [0, 0]], 0.95, "f1", True, "share", 1.0),
        ([-3.0, 4.9], 0.95, "mean", True, "1", 1.048),
    ],
)
def test_only_what_is_a_share_ends_at_one(
    values: list[Any], value: float, how: str, up: bool, unit: str, high: float
) -> None:
    metric = only(told(values, value, how=how, error=0.05, up=up))
    assert (metric.unit, metric.method) == (unit, "standard error")
    assert metric.high == pytest.approx(high, abs=1e-3)


ROWS = [[-20.0 - index % 7, 10 + index % 3] for index in range(120)]
MEAN = -math.fsum(row[0] for row in ROWS) / math.fsum(row[1] for row in ROWS)


@pytest.mark.parametrize(
    ("how", "value", "by", "exp"),
    [("weighted_perplexity", math.exp(MEAN), 1.0, True), ("bits_per_byte", MEAN / math.log(2), math.log(2), False)],
)
def test_weighted_losses_have_an_interval_and_pairs(how: str, value: float, by: float, exp: bool) -> None:
    result = told(ROWS, value, how=how, error="N/A", up=False)
    metric = only(result)
    drawn = statistics.ratio([-row[0] / by for row in ROWS], [row[1] for row in ROWS], WANTED)
    wanted = statistics.exponent(drawn, "loss") if exp else drawn
    assert (metric.low, metric.high, metric.method) == (wanted.low, wanted.high, wanted.method)
    assert metric.low is not None
    assert metric.high is not None
    assert metric.low < metric.value < metric.high
    assert scores.pairs(result, {"t": "t.jsonl"}, EVALUATION) == {"t_m": Pair("t.jsonl", "m_loss", "m_weight", exp)}
    first = next(scores.items("t", result))
    assert first == {"index": 0, "m": ROWS[0], "m_loss": 20.0 / by, "m_weight": 10.0, "hash": "h0"}


def test_a_perplexity_of_loglikelihoods_is_no_mean_of_them() -> None:
    result = told([-1.0, -2.0, -3.5], math.exp(6.5 / 3), how="perplexity", error=0.5, up=False)
    assert scores.pairs(result, {"t": "f"}, EVALUATION) == {"t_m": Pair("f", "m_loss", None, exp=True)}
    assert only(result).method.startswith("exp of the loss's: jackknife of 3 rows")


def test_what_its_items_do_not_make_is_not_paired() -> None:
    assert scores.pairs(told([1.0, 0.0, 0.0], 0.0, how="median"), {"t": "f"}, EVALUATION) == {}
    assert scores.pairs(told([[1, 1], [1, 1]], 1.0, how="f1"), {"t": "f"}, EVALUATION) == {}
    assert scores.pairs(told([1.0, 0.0], 0.5), {"t": "f"}, EVALUATION) == {"t_m": Pair("f", "m")}


def test_filters_stand_beside_each_other_in_an_item() -> None:
    result = told([1.0, 0.0], 0.5, taken="strict-match")
    assert list(scores.pairs(result, {"t": "f"}, EVALUATION).items()) == [
        ("t_m_strict_match", Pair("f", "m_strict-match"))
    ]
    assert list(scores.items("t", result))[1] == {"index": 1, "m_strict-match": 0.0, "hash": "h1"}
