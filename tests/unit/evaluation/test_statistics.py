"""Intervals and paired differences, against what is known of them."""

from __future__ import annotations

import math
import random
from statistics import mean, stdev

import pytest

from tunefleet.analysis.evaluation import statistics
from tunefleet.analysis.evaluation.statistics import IntervalOptions

WANTED = IntervalOptions()


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662), (1, 1, 0.2065, 1.0)],
)
def test_wilson_as_textbooks_have_it(right: int, n: int, low: float, high: float) -> None:
    found = statistics.wilson(right, n, WANTED)
    assert (found.low, found.high) == (pytest.approx(low, abs=5e-4), pytest.approx(high, abs=5e-4))


def rows(n: int) -> tuple[list[float], list[float]]:
    source = random.Random(1)
    weights = [float(source.randint(5, 50)) for _ in range(n)]
    return [weight * source.gauss(2.0, 0.5) for weight in weights], weights


def test_the_bootstrap_agrees_with_the_normal_approximation_and_is_repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, weights = rows(400)
    drawn = statistics.ratio(parts, weights, WANTED)
    assert drawn == statistics.ratio(parts, weights, WANTED)
    assert drawn != statistics.ratio(parts, weights, IntervalOptions(seed=7))
    assert drawn.method == "bootstrap of 400 rows, 1000 resamples, seed 42"
    narrow = statistics.ratio(parts, weights, IntervalOptions(confidence=0.6))
    monkeypatch.setattr(statistics, "MAX_DRAWN_ROWS", 399)
    straight = statistics.ratio(parts, weights, WANTED)
    assert straight.method == "jackknife of 400 rows, normal interval"
    assert None not in (drawn.low, drawn.high, straight.low, straight.high)
    assert drawn.low == pytest.approx(straight.low, abs=0.01)
    assert drawn.high == pytest.approx(straight.high, abs=0.01)
    assert drawn.low < narrow.low < narrow.high < drawn.high  # type: ignore[operator]


def test_draws_are_the_same_with_every_version_of_python() -> None:
    found = next(statistics._draws(10, IntervalOptions(seed=42)))
    assert found == [6, 0, 2, 2, 7, 6, 8, 0, 4, 0], "random.Random(42).random(), which Python promises to keep"
    assert len(list(statistics._draws(3, IntervalOptions(resamples=7)))) == 7


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (29, 2.0452), (98, 1.9845)]
)
def test_students_quantiles_as_tables_have_them(freedom: int, quantile: float) -> None:
    assert statistics._t(0.95, freedom) == pytest.approx(quantile, abs=5e-5)


@pytest.mark.parametrize("n", [3, 5, 20])
def test_few_rows_have_the_t_interval_of_their_mean(n: int) -> None:
    parts, _ = rows(n)
    found = statistics.ratio(parts, [1.0] * n, WANTED)
    half = statistics._t(0.95, n - 1) * stdev(parts) / math.sqrt(n)
    assert (found.low, found.high) == (pytest.approx(mean(parts) - half), pytest.approx(mean(parts) + half))
    assert found.method == f"jackknife of {n} rows, t interval"


def test_what_few_rows_say_holds_as_often_as_it_says() -> None:
    source = random.Random(3)
    hits = 0
    for _ in range(400):
        weights = [float(source.randint(5, 50)) for _ in range(5)]
        found = statistics.ratio([weight * source.gauss(2.0, 0.5) for weight in weights], weights, WANTED)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 2.0 <= found.high
    assert hits >= 360, "a percentile bootstrap of 5 rows has about 330"


def test_too_few_rows_have_no_interval_and_the_reason_is_said() -> None:
    for n in (1, 2):
        found = statistics.ratio([1.0] * n, [2.0] * n, WANTED)
        assert (found.low, found.high) == (None, None)
        assert found.method.startswith(f"no interval: {n} row")
        value, apart = statistics.ratio_difference([(1.0, 2.0)] * n, [(2.0, 2.0)] * n, WANTED)
        assert (value, apart.low) == (0.5, None)
    alone = statistics.ratio([1.0, 2.0, 3.0], [0.0, 0.0, 4.0], WANTED)
    assert (alone.low, alone.method) == (None, "no interval: too few of 3 rows have a weight")


def test_a_paired_difference_sees_what_two_intervals_do_not() -> None:
    source = random.Random(2)
    ours = [(source.gauss(5, 2) * 10, 10.0) for _ in range(100)]
    theirs = [(part - 1 + source.gauss(0, 0.5), weight) for part, weight in ours]
    alone = [statistics.ratio(*zip(*pairs, strict=True), WANTED) for pairs in (ours, theirs)]
    assert alone[1].high > alone[0].low  # type: ignore[operator]  # they overlap
    value, interval = statistics.ratio_difference(ours, theirs, WANTED)
    assert value == pytest.approx(-0.1, abs=0.02)
    assert interval.high is not None
    assert interval.high < 0, "and yet each row is better"


def test_mcnemar_is_exact() -> None:
    ours = [True] * 9 + [False] * 1 + [True] * 20
    theirs = [False] * 9 + [True] * 1 + [True] * 20
    assert statistics.mcnemar(ours, theirs) == pytest.approx(2 * (1 + 10) / 2**10)
    assert statistics.mcnemar(ours, ours) == 1.0
