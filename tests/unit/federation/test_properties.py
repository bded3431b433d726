"""What must hold for any updates: weights, order, one update alone, scale, and the basis of the factors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.federation.adapters import PREFIX, SHAPES, Arrays, difference, factors, load, products, save
from tunefleet.federation import TENSORS, Report, Update, aggregate, update_in
from tunefleet.federation.aggregation.strategy import product_error
from tunefleet.spec.options.federation_options import StrategySpec

PLAIN = ("fedavg", "fedprox", "median", "trimmed_mean")
OF_PRODUCTS = ("fedavg_exact", "krum", "multi_krum")
SERVER = ("fedadam", "fedyogi", "diloco")
ALL = (*PLAIN, *OF_PRODUCTS, *SERVER)
quick = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)


@contextmanager
def _folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="average-") as folder:
        yield Path(folder)


def _updates(root: Path, arrays: list[Arrays], counts: list[int], rank: int = 2) -> list[Update]:
    return [
        save(root / f"w{n}", each, worker=f"w{n}", examples=count, rank=rank)
        for n, (each, count) in enumerate(zip(arrays, counts, strict=True))
    ]


def _run(root: Path, updates: list[Update], spec: StrategySpec, name: str = "out") -> tuple[Report, Path]:
    out = root / name
    out.mkdir()
    return aggregate(updates, spec, into=out, new_state=root / f"{name}.state"), out


@quick
@given(name=st.sampled_from(ALL), counts=st.lists(st.integers(1, 10**9), min_size=5, max_size=9), seed=seeds)
def test_weights_sum_to_one_over_those_that_count(name: str, counts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    with _folder() as root:
        updates = _updates(root, [factors(rng) for _ in counts], counts)
        report, _ = _run(root, updates, StrategySpec(name=name))
    assert sum(report.weights.values()) == pytest.approx(1, abs=1e-12)
    assert all(weight > 0 for weight in report.weights.values())
    assert report.weights.keys() | report.excluded.keys() == {update.worker for update in updates}
    assert not report.weights.keys() & report.excluded.keys()


@quick
@given(name=st.sampled_from(ALL), data=st.data(), seed=seeds)
def test_the_order_of_arrival_changes_no_bit(name: str, data: st.DataObject, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with _folder() as root:
        updates = _updates(root, [factors(rng) for _ in range(5)], [3, 1, 4, 1, 5])
        _, one = _run(root, updates, StrategySpec(name=name), "one")
        _, other = _run(root, data.draw(st.permutations(updates)), StrategySpec(name=name), "other")
        assert (one / TENSORS).read_bytes() == (other / TENSORS).read_bytes()


@quick
@given(name=st.sampled_from(ALL), count=st.integers(5, 8), rank=st.integers(1, 4), seed=seeds)
def test_equal_updates_average_to_themselves(name: str, count: int, rank: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with _folder() as root:
        one = factors(rng, rank)
        updates = _updates(root, [one] * count, list(range(1, count + 1)), rank)
        _, out = _run(root, updates, StrategySpec(name=name))
        assert difference(products(out), products(root / "w0")) < 1e-5


@quick
@given(name=st.sampled_from(["fedavg", "fedprox", "fedavg_exact", *SERVER]), rank=st.integers(1, 5), seed=seeds)
def test_a_single_update_is_the_average(name: str, rank: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with _folder() as root:
        (update,) = _updates(root, [factors(rng, rank)], [7], rank)
        report, out = _run(root, [update], StrategySpec(name=name))
        assert report.weights == {"w0": 1.0}
        if name == "fedavg_exact":
            assert report.error == 0
            assert difference(products(out), products(root / "w0")) < 1e-5
        else:
            assert (out / TENSORS).read_bytes() == update.path.read_bytes()


@quick
@given(
    name=st.sampled_from(["fedavg", "median", "trimmed_mean", "fedavg_exact", "krum", "multi_krum"]),
    power=st.integers(-8, 8),
    seed=seeds,
)
def test_scaled_updates_average_to_the_scaled_average(name: str, power: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with _folder() as root:
        arrays = [factors(rng) for _ in range(5)]
        scaled = [
            {key: each * np.float32(2.0**power if "lora_B" in key else 1) for key, each in one.items()}
            for one in arrays
        ]
        _, out = _run(root, _updates(root / "plain", arrays, [1, 2, 3, 4, 5]), StrategySpec(name=name))
        _, large = _run(root, _updates(root / "scaled", scaled, [1, 2, 3, 4, 5]), StrategySpec(name=name), "large")
        wanted = {module: each * 2.0**power for module, each in products(out).items()}
        assert difference(products(large), wanted) < 1e-5


def _turned(one: Arrays, rng: np.random.Generator) -> Arrays:
    """(B R)(R⁻¹ A): other factors of the same update."""
    found: Arrays = {}
    for module in SHAPES:
        a, b = one[f"{PREFIX}{module}.lora_A.weight"], one[f"{PREFIX}{module}.lora_B.weight"]
        # Well-conditioned turns, times a scale that moves length from one factor into the other.
        turn, _ = np.linalg.qr(rng.standard_normal((len(a), len(a))))
        turn = turn @ np.diag(np.exp(rng.uniform(-2, 2, len(a))))
        found[f"{PREFIX}{module}.lora_A.weight"] = (np.linalg.inv(turn) @ a).astype(np.float32)
        found[f"{PREFIX}{module}.lora_B.weight"] = (b @ turn).astype(np.float32)
    return found


@quick
@given(
    name=st.sampled_from(OF_PRODUCTS),
    output=st.sampled_from(["rank", "stack"]),
    rank=st.integers(1, 4),
    seed=seeds,
)
def test_the_basis_of_the_factors_does_not_matter_to_products(name: str, output: str, rank: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    spec = StrategySpec(name=name) if name == "krum" else StrategySpec(name=name, output=output)
    with _folder() as root:
        arrays = [factors(rng, rank) for _ in range(5)]
        turned = [_turned(one, rng) for one in arrays]
        straight, one = _run(root, _updates(root / "one", arrays, [1] * 5, rank), spec, "out1")
        crooked, two = _run(root, _updates(root / "two", turned, [1] * 5, rank), spec, "out2")
        assert list(straight.weights) == list(crooked.weights)
        assert straight.layers.keys() == crooked.layers.keys()
        for module, layer in straight.layers.items():
            assert crooked.layers[module].norm == pytest.approx(layer.norm, rel=1e-5)
            assert crooked.layers[module].error == pytest.approx(layer.error, abs=1e-5)
        # Where two singular values are nearly equal the last direction may be either; what is left out tells it.
        if output == "stack" or name == "krum":
            assert difference(products(two), products(one)) < 1e-4


@quick
@given(ranks=st.lists(st.integers(1, 6), min_size=1, max_size=6), counts=st.data(), seed=seeds)
def test_no_adapter_of_that_rank_is_nearer_than_the_exact_average(
    ranks: list[int], counts: st.DataObject, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    with _folder() as root:
        updates = [
            save(
                root / f"w{n}", factors(rng, rank), worker=f"w{n}", examples=counts.draw(st.integers(1, 99)), rank=rank
            )
            for n, rank in enumerate(ranks)
        ]
        report, out = _run(root, updates, StrategySpec(name="fedavg_exact"))
        measured = product_error(updates, report.weights, update_in(out))
        for module, layer in report.layers.items():
            true = sum(report.weights[u.worker] * products(u.path.parent)[module] for u in updates)
            values = np.linalg.svd(true, compute_uv=False)
            best = float(np.sqrt((values[max(ranks) :] ** 2).sum() / (values**2).sum()))
            assert layer.error == pytest.approx(best, abs=1e-5)
            assert measured[module].error == pytest.approx(best, abs=1e-5)
            assert layer.norm == pytest.approx(np.linalg.norm(true), rel=1e-5)


@quick
@given(name=st.sampled_from(["fedavg", "median"]), seed=seeds)
def test_every_number_lies_between_those_that_were_averaged(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with _folder() as root:
        updates = _updates(root, [factors(rng) for _ in range(5)], [1, 5, 2, 9, 3])
        _, out = _run(root, updates, StrategySpec(name=name))
        stored = [load(root / f"w{n}") for n in range(5)]
        for key, found in load(out).items():
            several = np.stack([each[key] for each in stored])
            assert (found >= several.min(axis=0) - 1e-6).all()
            assert (found <= several.max(axis=0) + 1e-6).all()
