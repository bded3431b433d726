"""Rules that withstand nonsense: median, trimmed mean, Krum; by hand, and against what they are made for."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.unit.federation.adapters import PREFIX, Arrays, Q, V, difference, factors, load, products, save
from tunefleet.errors import AdapterRefused, InputError
from tunefleet.federation import TENSORS, Update, aggregate, update_in
from tunefleet.federation.aggregation.by_factors import network, order, trimmed
from tunefleet.spec.options.federation_options import StrategySpec

A = f"{PREFIX}{Q}.lora_A.weight"
HEAD = f"{PREFIX}lm_head.weight"


def _out(tmp_path: Path, name: str = "out") -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder


def _values(tmp_path: Path, values: list[float], **more: object) -> list[Update]:
    return [
        save(
            tmp_path / f"w{n}",
            {A: np.full((1, 3), value, np.float32), A.replace("_A", "_B"): np.ones((2, 1), np.float32)},
            worker=f"w{n}",
            rank=1,
        )
        for n, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("values", "median"), [([5, 1, 9], 5.0), ([4, 1, 9, 6], 5.0), ([2, 2, 2, 1e30, -1e30], 2.0), ([7, 7, 1, 1, 3], 3.0)]
)
def test_median_by_hand(tmp_path: Path, values: list[float], median: float) -> None:
    report = aggregate(_values(tmp_path, values), StrategySpec(name="median"), into=_out(tmp_path))
    assert load(tmp_path / "out")[A].tolist() == [[median] * 3]
    assert sum(report.weights.values()) == pytest.approx(1)
    assert report.notes


@pytest.mark.parametrize(
    ("values", "trim", "mean"),
    [
        ([0, 1, 2, 3, 1000], 0.2, 2.0),
        ([0, 1, 2, 3, 1000], 0.4, 2.0),
        ([-50, 1, 3, 90], 0.1, 2.0),
        ([1, 5, 90], 0.49, 5.0),
    ],
)
def test_trimmed_mean_by_hand(tmp_path: Path, values: list[float], trim: float, mean: float) -> None:
    aggregate(_values(tmp_path, values), StrategySpec(name="trimmed_mean", trim=trim), into=_out(tmp_path))
    assert load(tmp_path / "out")[A].tolist() == [[mean] * 3]


def test_what_is_trimmed_leaves_something() -> None:
    for count, trim in itertools.product(range(3, 40), (0.01, 0.2, 0.34, 0.49)):
        cut = trimmed(count, trim)
        assert cut >= 1
        assert count - 2 * cut >= 1
    assert trimmed(100, 0.29) == 29


@pytest.mark.parametrize("name", ["median", "trimmed_mean"])
def test_two_updates_have_no_middle(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="requires 3 updates; there are 2"):
        aggregate(_values(tmp_path, [1, 2]), StrategySpec(name=name), into=_out(tmp_path))


def test_the_order_network_orders_everything() -> None:
    """A network that orders all zeros and ones orders everything (Knuth 5.3.4)."""
    for count in range(1, 11):
        for bits in itertools.product((0.0, 1.0), repeat=count):
            ordered = list(bits)
            for low, high in network(count):
                ordered[low], ordered[high] = min(ordered[low], ordered[high]), max(ordered[low], ordered[high])
            assert ordered == sorted(bits)


@settings(max_examples=30)
@given(arrays(np.float32, st.tuples(st.integers(2, 20), st.integers(1, 9)), elements=st.floats(-1e3, 1e3, width=32)))
def test_lines_come_in_order(values: np.ndarray) -> None:
    lines = [row.copy() for row in values]
    order(lines)
    assert np.array_equal(np.stack(lines), np.sort(values, axis=0))


def _honest(tmp_path: Path, count: int, size: float = 0.05) -> tuple[list[Update], Arrays]:
    """Updates that lie around one adapter."""
    rng = np.random.default_rng(5)
    centre = factors(rng)
    updates = []
    for n in range(count):
        noisy = {
            name: each + size * rng.standard_normal(each.shape).astype(np.float32) for name, each in centre.items()
        }
        updates.append(save(tmp_path / f"h{n}", noisy, worker=f"h{n}", examples=10))
    return updates, centre


@pytest.mark.parametrize("name", ["median", "trimmed_mean", "krum", "multi_krum"])
@pytest.mark.parametrize("poison", [-20.0, 1e18])
def test_a_scaled_poison_is_withstood_where_the_plain_mean_is_not(tmp_path: Path, name: str, poison: float) -> None:
    updates, centre = _honest(tmp_path, 6)
    bad = {key: each * np.float32(poison) for key, each in centre.items()}
    updates.append(save(tmp_path / "bad", bad, worker="a liar", examples=1_000_000))
    save(tmp_path / "centre", centre)
    true = products(tmp_path / "centre")
    report = aggregate(updates, StrategySpec(name=name), into=_out(tmp_path))
    assert difference(products(tmp_path / "out"), true) < 0.2
    aggregate(updates, StrategySpec(), into=_out(tmp_path, "plain"))
    assert difference(products(tmp_path / "plain"), true) > 1
    if "krum" in name:
        assert "a liar" in report.excluded
        assert "a liar" not in report.weights
        assert "Too far from the others" in report.excluded["a liar"]
        assert report.scores["a liar"] == max(report.scores.values())


def _turned(update: Update, folder: Path, rng: np.random.Generator) -> Update:
    """The same update in another basis: (B R)(R⁻¹ A)."""
    found: Arrays = {}
    stored = load(update.path.parent)
    for module in (Q, V):
        a, b = stored[f"{PREFIX}{module}.lora_A.weight"], stored[f"{PREFIX}{module}.lora_B.weight"]
        turn = rng.standard_normal((len(a), len(a))) + 2 * np.eye(len(a))
        found[f"{PREFIX}{module}.lora_A.weight"] = (np.linalg.inv(turn) @ a).astype(np.float32)
        found[f"{PREFIX}{module}.lora_B.weight"] = (b @ turn).astype(np.float32)
    return save(folder, found, worker=update.worker, examples=update.num_examples)


def test_krum_sees_updates_and_not_the_basis_that_they_are_written_in(tmp_path: Path) -> None:
    updates, centre = _honest(tmp_path, 6)
    updates.append(save(tmp_path / "bad", {key: each * 3 for key, each in centre.items()}, worker="liar"))
    rng = np.random.default_rng(6)
    turned = [_turned(update, tmp_path / f"turned{n}", rng) for n, update in enumerate(updates)]
    straight = aggregate(updates, StrategySpec(name="krum"), into=_out(tmp_path, "one"))
    crooked = aggregate(turned, StrategySpec(name="krum"), into=_out(tmp_path, "two"))
    assert list(straight.weights) == list(crooked.weights)
    assert crooked.scores == pytest.approx(straight.scores, rel=1e-4)
    several = aggregate(turned, StrategySpec(name="multi_krum"), into=_out(tmp_path, "several"))
    assert set(several.excluded) == {"liar"}
    aggregate(updates, StrategySpec(name="multi_krum"), into=_out(tmp_path, "severally"))
    assert difference(products(tmp_path / "several"), products(tmp_path / "severally")) < 1e-4
    # The median of factors has no such invariance; that is why it says what it needs.
    aggregate(updates, StrategySpec(name="median"), into=_out(tmp_path, "m1"))
    aggregate(turned, StrategySpec(name="median"), into=_out(tmp_path, "m2"))
    assert difference(products(tmp_path / "m2"), products(tmp_path / "m1")) > 0.3


def test_krum_publishes_the_chosen_update_as_it_is(tmp_path: Path) -> None:
    updates, _ = _honest(tmp_path, 5)
    report = aggregate(updates, StrategySpec(name="krum"), into=_out(tmp_path))
    (worker,) = report.weights
    assert report.weights == {worker: 1.0}
    assert (tmp_path / "out" / TENSORS).read_bytes() == (tmp_path / worker / TENSORS).read_bytes()
    assert set(report.excluded) == {update.worker for update in updates} - {worker}


def test_krum_scores_by_hand(tmp_path: Path) -> None:
    """B is (1, 1) and A is (x, x, x), alpha 4: a distance is 4 · √6 · |x - y|. Two of the nearest count."""
    report = aggregate(_values(tmp_path, [0, 1, 2, 4, 100]), StrategySpec(name="krum"), into=_out(tmp_path))
    unit = 16 * 6
    assert {name: score / unit for name, score in report.scores.items()} == pytest.approx(
        {"w0": 5, "w1": 2, "w2": 5, "w3": 13, "w4": 96**2 + 98**2}, rel=1e-6
    )
    assert list(report.weights) == ["w1"]


def test_krum_takes_mixed_ranks(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    centre = factors(rng, 2)
    updates = []
    for n in range(5):
        arrays = {
            name: np.concatenate(
                [each, np.zeros_like(each[:1] if "lora_A" in name else each[:, :1])], axis=0 if "lora_A" in name else 1
            )
            if n % 2
            else each
            for name, each in centre.items()
        }
        rank = 3 if n % 2 else 2
        updates.append(save(tmp_path / f"w{n}", arrays, worker=f"w{n}", rank=rank, alpha=2 * rank))
    report = aggregate(updates, StrategySpec(name="krum"), into=_out(tmp_path))
    assert max(report.scores.values()) < 1e-6
    aggregate(updates, StrategySpec(name="multi_krum"), into=_out(tmp_path, "several"))
    assert update_in(tmp_path / "several").config.rank == 3
    assert difference(products(tmp_path / "several"), products(tmp_path / "w0")) < 1e-5


def test_krum_looks_at_layers_that_are_trained_whole(tmp_path: Path) -> None:
    updates = []
    rng = np.random.default_rng(9)
    arrays = factors(rng)
    for n in range(5):
        head = np.full((4, 4), 100.0 if n == 2 else 1.0 + 0.01 * n, np.float32)
        updates.append(save(tmp_path / f"w{n}", {**arrays, HEAD: head}, worker=f"w{n}", modules_to_save=["lm_head"]))
    report = aggregate(updates, StrategySpec(name="krum"), into=_out(tmp_path))
    assert max(report.scores, key=report.scores.__getitem__) == "w2"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"name": "krum"}, "requires 5 updates; there are 4"),
        ({"name": "krum", "byzantine": 2}, "requires 7 updates"),
        ({"name": "multi_krum", "keep": 4}, "requires 5 updates"),
    ],
)
def test_krum_with_too_few_is_refused(tmp_path: Path, spec: dict[str, object], words: str) -> None:
    updates, _ = _honest(tmp_path, 4)
    with pytest.raises(InputError, match=words):
        aggregate(updates, StrategySpec.model_validate(spec), into=_out(tmp_path))


def test_multi_krum_cannot_keep_more_than_there_are(tmp_path: Path) -> None:
    updates, _ = _honest(tmp_path, 5)
    with pytest.raises(InputError, match="keeps 9 updates, but there are only 5"):
        aggregate(updates, StrategySpec(name="multi_krum", keep=9), into=_out(tmp_path))


def test_multi_krum_weighs_by_examples_if_it_is_asked_to(tmp_path: Path) -> None:
    updates, _ = _honest(tmp_path, 5)
    updates[0] = Update("h0", updates[0].path, updates[0].config, 30)
    spec = StrategySpec(name="multi_krum", keep=5, weighting="examples", max_examples=20)
    report = aggregate(updates, spec, into=_out(tmp_path))
    assert report.weights["h0"] == pytest.approx(20 / 60)
    assert aggregate(updates, StrategySpec(name="multi_krum", keep=5), into=tmp_path / "out").weights["h0"] == 0.2


def test_mixed_ranks_have_no_median(tmp_path: Path) -> None:
    rng = np.random.default_rng(10)
    updates = [
        save(tmp_path / f"w{n}", factors(rng, rank), worker=f"w{n}", rank=rank) for n, rank in enumerate((2, 2, 3))
    ]
    for name in ("median", "trimmed_mean"):
        with pytest.raises(AdapterRefused, match="requires equal ranks"):
            aggregate(updates, StrategySpec(name=name), into=_out(tmp_path, name))
