"""The mean of products against dense matrices in float64: what is left out, and in which basis the rest comes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.federation.adapters import PREFIX, SHAPES, Arrays, Q, V, difference, factors, load, products, save
from tunefleet.errors import InputError
from tunefleet.federation import RESIDUAL, Update, aggregate, config_of, refit, update_in
from tunefleet.federation.aggregation import exact
from tunefleet.federation.aggregation.exact import Truncated, truncate
from tunefleet.federation.aggregation.strategy import product_error, with_error
from tunefleet.spec.options.federation_options import StrategySpec

EXACT = StrategySpec(name="fedavg_exact")


def _true(updates: list[Update]) -> dict[str, np.ndarray]:
    total = sum(update.num_examples for update in updates)
    found: dict[str, np.ndarray] = {}
    for update in updates:
        for module, product in products(update.path.parent).items():
            found[module] = found.get(module, 0) + product * update.num_examples / total
    return found


def _best_error(true: dict[str, np.ndarray], rank: int) -> dict[str, float]:
    found = {}
    for module, product in true.items():
        values = np.linalg.svd(product, compute_uv=False)
        found[module] = float(np.sqrt((values[rank:] ** 2).sum() / (values**2).sum()))
    return found


def _out(tmp_path: Path, name: str = "out") -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder


def _updates(tmp_path: Path, ranks: list[int], **more: object) -> list[Update]:
    rng = np.random.default_rng(7)
    return [
        save(tmp_path / f"w{n}", factors(rng, rank), worker=f"w{n}", examples=n + 1, rank=rank, **more)
        for n, rank in enumerate(ranks)
    ]


def test_by_hand(tmp_path: Path) -> None:
    """Two updates along one axis each: the mean of the factors mixes them, the mean of the products does not."""
    a, b = f"{PREFIX}{Q}.lora_A.weight", f"{PREFIX}{Q}.lora_B.weight"
    one = save(
        tmp_path / "a",
        {a: np.array([[1, 0]], np.float32), b: np.array([[6], [0]], np.float32)},
        worker="a",
        rank=1,
        alpha=1,
    )
    two = save(
        tmp_path / "b",
        {a: np.array([[0, 1]], np.float32), b: np.array([[0], [2]], np.float32)},
        worker="b",
        rank=1,
        alpha=1,
    )
    plain = aggregate([one, two], StrategySpec(), into=_out(tmp_path, "plain"))
    assert products(tmp_path / "plain")[Q].tolist() == [[1.5, 1.5], [0.5, 0.5]]
    measured = with_error(plain, StrategySpec(), [one, two], tmp_path / "plain")
    assert measured.error == pytest.approx(np.sqrt(5) / np.sqrt(10)), "√(1.5² + 1.5² + 0.5² + 0.5²) of √(3² + 1²)"
    report = aggregate([one, two], EXACT, into=_out(tmp_path, "best"))
    assert products(tmp_path / "best")[Q] == pytest.approx(np.array([[3.0, 0.0], [0.0, 0.0]]), abs=1e-6)
    assert report.layers[Q].norm == pytest.approx(np.sqrt(10))
    assert report.layers[Q].error == pytest.approx(1 / np.sqrt(10))
    assert report.error == pytest.approx(1 / np.sqrt(10))
    two_ranks = StrategySpec(name="fedavg_exact", rank=2)
    report = aggregate([one, two], two_ranks, into=_out(tmp_path, "two"))
    assert products(tmp_path / "two")[Q] == pytest.approx(np.array([[3.0, 0.0], [0.0, 1.0]]), abs=1e-6)
    assert report.error == 0.0


@pytest.mark.parametrize("ranks", [[2, 2], [1, 3, 2], [4, 4, 4, 4], [1] * 9])
def test_no_other_adapter_of_that_rank_is_nearer(tmp_path: Path, ranks: list[int]) -> None:
    updates = _updates(tmp_path, ranks)
    true = _true(updates)
    report = aggregate(updates, EXACT, into=_out(tmp_path))
    rank = max(ranks)
    assert update_in(tmp_path / "out").config.rank == report.rank == rank
    found = products(tmp_path / "out")
    for module, best in _best_error(true, rank).items():
        assert report.layers[module].error == pytest.approx(best, abs=1e-6)
        assert difference({module: found[module]}, {module: true[module]}) == pytest.approx(best, abs=1e-6)
        assert report.layers[module].norm == pytest.approx(np.linalg.norm(true[module]), rel=1e-6)


@pytest.mark.parametrize("output", ["stack", "residual"])
def test_with_all_of_it_nothing_is_left_out(tmp_path: Path, output: str) -> None:
    updates = _updates(tmp_path, [2, 3, 1])
    report = aggregate(updates, StrategySpec(name="fedavg_exact", output=output), into=_out(tmp_path))
    found = products(tmp_path / "out")
    if output == "residual":
        assert report.residual == f"{RESIDUAL}/adapter_model.safetensors"
        rest = products(tmp_path / "out" / RESIDUAL)
        assert update_in(tmp_path / "out" / RESIDUAL).config.rank == 3
        assert update_in(tmp_path / "out").config.rank == 3
        found = {module: found[module] + rest[module] for module in found}
    else:
        assert update_in(tmp_path / "out").config.rank == 6
        assert report.error == 0.0
    assert difference(found, _true(updates)) < 1e-6


def test_alphas_and_rslora_are_honoured(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    updates = [
        save(tmp_path / "a", factors(rng, 2), worker="a", alpha=3, rank=2),
        save(tmp_path / "b", factors(rng, 4), worker="b", alpha=16, rank=4, use_rslora=True),
        save(tmp_path / "c", factors(rng, 2), worker="c", alpha=8, rank=2, alpha_pattern={"q_proj": 1}),
    ]
    aggregate(updates, StrategySpec(name="fedavg_exact", rank=8), into=_out(tmp_path))
    assert difference(products(tmp_path / "out"), _true(updates)) < 1e-6


def test_ranks_of_single_layers_stay_as_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)

    def one(name: str) -> Update:
        arrays = {**factors(rng, 2, {Q: SHAPES[Q]}), **factors(rng, 4, {V: SHAPES[V]})}
        return save(tmp_path / name, arrays, worker=name, rank_pattern={"v_proj": 4}, alpha_pattern={"v_proj": 6})

    updates = [one("a"), one("b")]
    for strategy in (EXACT, StrategySpec()):
        report = aggregate(updates, strategy, into=_out(tmp_path, strategy.name))
        out = update_in(tmp_path / strategy.name).config
        assert (out.rank_of(Q), out.rank_of(V)) == (2, 4)
        if report.layers:
            best = _best_error(_true(updates), 2)[Q]
            assert report.layers[Q].error == pytest.approx(best, abs=1e-6)
    uniform = aggregate(updates, StrategySpec(name="fedavg_exact", rank=8), into=_out(tmp_path, "wide"))
    assert uniform.error == 0
    assert difference(products(tmp_path / "wide"), _true(updates)) < 1e-6


def test_embeddings_are_pairs_of_factors_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(10)
    module = "model.embed_tokens"

    def one(name: str) -> Update:
        arrays: Arrays = {
            f"{PREFIX}{module}.lora_embedding_A": rng.standard_normal((2, 30)).astype(np.float32),
            f"{PREFIX}{module}.lora_embedding_B": rng.standard_normal((8, 2)).astype(np.float32),
        }
        return save(tmp_path / name, arrays, worker=name, target_modules=["embed_tokens"])

    updates = [one("a"), one("b")]
    aggregate(updates, StrategySpec(name="fedavg_exact", rank=4), into=_out(tmp_path))
    assert difference(products(tmp_path / "out"), _true(updates)) < 1e-6


def test_a_single_update_comes_back_as_it_was(tmp_path: Path) -> None:
    """Not only its product: its factors, so that an optimizer's moments go on meaning what they meant."""
    (update,) = _updates(tmp_path, [3])
    aggregate([update], EXACT, into=_out(tmp_path))
    found, was = load(tmp_path / "out"), load(update.path.parent)
    for name in was:
        assert found[name] == pytest.approx(was[name], abs=1e-5)


def test_what_began_alike_stays_in_its_basis(tmp_path: Path) -> None:
    """Workers that share A get A back; those that moved it a little get nearly the mean of their As."""
    rng = np.random.default_rng(11)
    start = factors(rng, 2)
    updates = []
    for n in range(4):
        arrays = {
            name: each + 0.01 * rng.standard_normal(each.shape).astype(np.float32)
            if "lora_A" in name
            else rng.standard_normal(each.shape).astype(np.float32)
            for name, each in start.items()
        }
        updates.append(save(tmp_path / f"w{n}", arrays, worker=f"w{n}"))
    aggregate(updates, EXACT, into=_out(tmp_path))
    found = load(tmp_path / "out")
    for name in found:
        if "lora_A" in name:
            mean = np.mean([load(update.path.parent)[name] for update in updates], axis=0)
            assert np.linalg.norm(found[name] - mean) < 0.05 * np.linalg.norm(mean)


def test_updates_that_learned_nothing_average_to_nothing_that_can_learn(tmp_path: Path) -> None:
    rng = np.random.default_rng(12)
    updates = []
    for n in range(2):
        arrays = {name: each * ("lora_A" in name) for name, each in factors(rng).items()}
        updates.append(save(tmp_path / f"w{n}", arrays, worker=f"w{n}"))
    report = aggregate(updates, EXACT, into=_out(tmp_path))
    assert report.error == 0
    assert {layer.norm for layer in report.layers.values()} == {0.0}
    found = load(tmp_path / "out")
    for name, each in found.items():
        if "lora_B" in name:
            assert not each.any()
        else:
            assert (np.linalg.norm(each, axis=1) > 0.1).all()


def test_a_rank_beyond_the_updates_is_filled_with_what_can_learn(tmp_path: Path) -> None:
    updates = _updates(tmp_path, [1, 1])
    aggregate(updates, StrategySpec(name="fedavg_exact", rank=6), into=_out(tmp_path))
    assert difference(products(tmp_path / "out"), _true(updates)) < 1e-6
    for name, each in load(tmp_path / "out").items():
        if "lora_A" in name:
            assert each.shape[0] == 6
            assert (np.linalg.norm(each, axis=1) > 0.1).all()


def test_huge_a_and_tiny_b_are_no_trouble(tmp_path: Path) -> None:
    """Only the product of a pair means something: one worker's may be long where another's is short."""
    rng = np.random.default_rng(13)
    updates = []
    for n, size in enumerate((1e-6, 1.0, 1e6)):
        arrays = {
            name: each * np.float32(size if "lora_A" in name else 1 / size) for name, each in factors(rng).items()
        }
        updates.append(save(tmp_path / f"w{n}", arrays, worker=f"w{n}"))
    true = _true(updates)
    report = aggregate(updates, EXACT, into=_out(tmp_path))
    found = products(tmp_path / "out")
    for module, best in _best_error(true, 2).items():
        assert report.layers[module].error == pytest.approx(best, abs=1e-5)
        assert difference({module: found[module]}, {module: true[module]}) == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("apart", [1e-1, 1e-3, 1e-5])
def test_factors_that_are_almost_dependent_are_averaged_as_well(tmp_path: Path, apart: float) -> None:
    """As and Bs that differ little from worker to worker, with directions a million times shorter than others.

    Squaring them, as Gram matrices do, must not cost what float32 holds.
    """
    rng = np.random.default_rng(16)
    shapes = {Q: (60, 50)}
    common = factors(rng, 4, shapes)
    lengths = np.array([1.0, 1e-2, 1e-4, 1e-6], np.float32)
    updates = []
    for n in range(5):
        own = factors(rng, 4, shapes)
        arrays = {
            name: (each + np.float32(apart) * own[name]) * (lengths[:, None] if "lora_A" in name else lengths)
            for name, each in common.items()
        }
        updates.append(save(tmp_path / f"w{n}", arrays, worker=f"w{n}", rank=4))
    true = _true(updates)
    report = aggregate(updates, EXACT, into=_out(tmp_path))
    best = _best_error(true, 4)[Q]
    assert difference(products(tmp_path / "out"), true) == pytest.approx(best, abs=5e-7)
    assert report.layers[Q].error == pytest.approx(best, abs=5e-7)


def test_layers_that_nobody_changed_are_nothing_beside_those_that_somebody_did(tmp_path: Path) -> None:
    rng = np.random.default_rng(17)
    updates = []
    for n in range(3):
        arrays = factors(rng)
        for name, each in arrays.items():
            if Q in name and "lora_B" in name:
                each[:] = 0.0
        updates.append(save(tmp_path / f"w{n}", arrays, worker=f"w{n}"))
    report = aggregate(updates, EXACT, into=_out(tmp_path))
    found, true = products(tmp_path / "out"), _true(updates)
    assert not found[Q].any()
    assert (report.layers[Q].norm, report.layers[Q].error) == (0.0, 0.0)
    others = [module for module in true if module != Q]
    assert others
    for module in others:
        assert report.layers[module].error == pytest.approx(_best_error({module: true[module]}, 2)[module], abs=1e-6)


def test_too_large_a_sum_of_ranks_is_refused_and_not_tried(tmp_path: Path) -> None:
    rng = np.random.default_rng(14)
    shapes = {Q: (2, 2)}
    updates = [save(tmp_path / f"w{n}", factors(rng, 1500, shapes), worker=f"w{n}", rank=1500) for n in range(3)]
    with pytest.raises(InputError, match=r"sum to 4,500 .* limit .* is 4,096"):
        aggregate(updates, EXACT, into=_out(tmp_path))


def test_blocks_of_a_large_layer_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 64 rows or columns, as a layer has that does not fit into memory."""
    monkeypatch.setattr("tunefleet.federation.aggregation.stacks._MAX_BYTES", 1)
    rng = np.random.default_rng(15)
    shapes = {Q: (200, 150)}
    updates = [save(tmp_path / f"w{n}", factors(rng, 3, shapes), worker=f"w{n}", rank=3) for n in range(3)]
    for output in ("rank", "residual", "stack"):
        report = aggregate(updates, StrategySpec(name="fedavg_exact", output=output), into=_out(tmp_path, output))
        found = products(tmp_path / output)
        if output == "residual":
            found[Q] = found[Q] + products(tmp_path / output / RESIDUAL)[Q]
        best = _best_error(_true(updates), 3)[Q] if output == "rank" else 0.0
        assert difference(found, _true(updates)) == pytest.approx(best, abs=1e-6)
        assert report.bytes_written > 0


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_refit_says_an_adapter_with_another_rank(tmp_path: Path, rank: int) -> None:
    (update,) = _updates(tmp_path, [3])
    like = config_of({**update.config.raw, "r": rank, "lora_alpha": 7})
    report = refit(update, like, _out(tmp_path))
    assert update_in(tmp_path / "out").config == like
    true = products(update.path.parent)
    assert report.error == pytest.approx(difference(products(tmp_path / "out"), true), abs=1e-6)
    for module, best in _best_error(true, rank).items():
        assert report.layers[module].error == pytest.approx(best, abs=1e-6)


def test_product_error_measures_what_an_average_of_factors_gets_wrong(tmp_path: Path) -> None:
    updates = _updates(tmp_path, [2, 2, 2])
    report = aggregate(updates, StrategySpec(), into=_out(tmp_path))
    true, found = _true(updates), products(tmp_path / "out")
    measured = product_error(updates, report.weights, update_in(tmp_path / "out"))
    for module, layer in measured.items():
        assert layer.error == pytest.approx(difference({module: found[module]}, {module: true[module]}), rel=1e-5)
        assert layer.norm == pytest.approx(np.linalg.norm(true[module]), rel=1e-6)
    aggregate(updates, StrategySpec(name="fedavg_exact", output="stack"), into=_out(tmp_path, "all"))
    stacked = product_error(updates, report.weights, update_in(tmp_path / "all"))
    assert max(layer.error for layer in stacked.values()) < 1e-6


@pytest.mark.parametrize(("beyond", "wide"), [(4.0, True), (float("inf"), False)])
def test_what_cancels_is_added_up_in_float64(
    beyond: float, wide: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers whose As are alike in three digits and whose Bs are opposite: float32 would lose the difference."""
    rng = np.random.default_rng(3)
    one = factors(rng, 2)
    two = {
        name: (values + 1e-3 * rng.standard_normal(values.shape) if "lora_A" in name else -values).astype(np.float32)
        for name, values in one.items()
    }
    updates = [save(tmp_path / worker, each, worker=worker) for worker, each in (("a", one), ("b", two))]
    mixed: list[Truncated] = []
    monkeypatch.setattr(exact, "truncate", lambda *given, **more: mixed.append(truncate(*given, **more)) or mixed[-1])
    monkeypatch.setattr(exact, "_CANCELLED", beyond)
    aggregate(updates, EXACT, into=_out(tmp_path))
    written = load(tmp_path / "out")
    assert min(each.cancelled for each in mixed) > 1000
    for name in (each for each in one if "lora_A" in each):
        stacked = np.concatenate([one[name], two[name]]).astype(np.float64)
        # Which of the layers was first is a matter of threads.
        apart = min(np.abs(each.right @ stacked - written[name]).max() for each in mixed)
        assert (apart / np.abs(written[name]).max() < 1e-7) == wide
