"""Dealing rows out to the workers of a federation: every row once, nobody without one, the same at every call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunefleet.errors import DataError
from tunefleet.spec import SplitSpec
from tunefleet.workloads.data.partition import split

IID = SplitSpec()
COLUMN = SplitSpec(by="column", column="label")
LABELS = st.sampled_from(["a", "b", 1, 2.5, True, None])


def dirichlet(alpha: float) -> SplitSpec:
    return SplitSpec(by="dirichlet", column="label", alpha=alpha)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Any], int, SplitSpec, int]:
    """Values of a column, workers, how to deal out, seed."""
    total = draw(st.integers(2, 7))
    values = draw(st.lists(LABELS, min_size=total, max_size=60))
    how = draw(st.sampled_from([IID, COLUMN, dirichlet(0.01), dirichlet(0.3), dirichlet(100.0)]))
    return values, total, how, draw(st.integers(0, 2**32 - 1))


@given(tables())
def test_every_row_is_one_workers_and_every_worker_has_one(table: tuple[list[Any], int, SplitSpec, int]) -> None:
    values, total, how, seed = table
    if how.by == "column" and len({(type(value), value) for value in values}) < total:
        with pytest.raises(DataError, match="too few for"):
            split(len(values), total, how, values, seed)
        return
    parts = split(len(values), total, how, values, seed)
    assert len(parts) == total
    assert all(len(part) for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(values)))
    assert all((np.diff(part) > 0).all() for part in parts), "in the order of the rows"
    again = split(len(values), total, how, values, seed)
    assert [part.tolist() for part in again] == [part.tolist() for part in parts]
    if how.by != "column":
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(tables())
def test_all_rows_of_a_value_go_to_one_worker(table: tuple[list[Any], int, SplitSpec, int]) -> None:
    values, total, _, seed = table
    if len({(type(value), value) for value in values}) < total:
        return
    owners = [
        {(type(values[row]), values[row]) for row in part} for part in split(len(values), total, COLUMN, values, seed)
    ]
    assert sum(map(len, owners)) == len(set[Any]().union(*owners))


def test_whole_values_are_dealt_out_evenly() -> None:
    values = ["a"] * 50 + ["b"] * 30 + ["c"] * 20 + ["d"] * 10
    parts = split(len(values), 2, COLUMN, values, 0)
    assert [sorted({values[row] for row in part}) for part in parts] == [["a", "d"], ["b", "c"]]


def test_another_seed_deals_out_otherwise() -> None:
    for how in (IID, dirichlet(10.0)):
        one, two = (split(40, 2, how, ["a", "b"] * 20, seed)[0].tolist() for seed in (1, 2))
        assert one != two


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_a_small_alpha_leaves_each_worker_few_values_and_a_large_one_mixes_them(seed: int) -> None:
    values = [row % 10 for row in range(2000)]

    def largest(alpha: float) -> float:
        """Mean share of the most frequent value among a worker's rows; a tenth if they are mixed evenly."""
        parts = split(len(values), 5, dirichlet(alpha), values, seed)
        return float(np.mean([np.bincount(np.array(values)[part]).max() / len(part) for part in parts]))

    assert largest(1e4) < 0.2 < 0.3 < largest(0.1)


def test_the_mixtures_are_those_of_the_dirichlet_distribution() -> None:
    """Of the first worker, who finds all values there: its share of a value has the mean and the variance of Dir."""
    alpha, values = 2.0, [0] * 3000 + [1] * 1000
    shares = [
        float(np.mean(np.array(values)[split(4000, 40, dirichlet(alpha), values, seed)[0]])) for seed in range(150)
    ]
    mean, variance = 0.25, 0.25 * 0.75 / (alpha + 1) + 0.25 * 0.75 / 100
    assert np.mean(shares) == pytest.approx(mean, abs=4 * (variance / 150) ** 0.5)
    assert np.var(shares) == pytest.approx(variance, rel=0.3)


def test_what_cannot_be_dealt_out_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="3 rows cannot be split among 4 workers"):
        split(3, 4, IID, [], 0)
    with pytest.raises(DataError, match="'label' holds 2 different values, too few for 3 workers"):
        split(9, 3, COLUMN, ["a", "b", "a"] * 3, 0)
    with pytest.raises(DataError, match="Row 2 holds list in 'label'"):
        split(2, 2, COLUMN, ["a", []], 0)
