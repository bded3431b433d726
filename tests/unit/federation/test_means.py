"""The mean of factors, by hand: weights, types, scales, and nothing averaged that is not in every update."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tests.unit.federation.adapters import PREFIX, Q, difference, factors, load, products, save
from tunefleet.errors import AdapterRefused, InputError
from tunefleet.federation import TENSORS, AdapterFile, Update, aggregate, update_in, write_tensors
from tunefleet.federation.floats import narrow, widen
from tunefleet.spec.options.federation_options import StrategySpec

A = f"{PREFIX}{Q}.lora_A.weight"
B = f"{PREFIX}{Q}.lora_B.weight"
HEAD = f"{PREFIX}lm_head.weight"


def _pair(a: list[list[float]], b: list[list[float]]) -> dict[str, np.ndarray]:
    return {A: np.array(a, np.float32), B: np.array(b, np.float32)}


def _out(tmp_path: Path, name: str = "out") -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder


def _two(tmp_path: Path, **more: int) -> list[Update]:
    one = save(tmp_path / "a", _pair([[1, 2]], [[4], [8]]), worker="a", examples=1, rank=1, alpha=2)
    two = save(tmp_path / "b", _pair([[5, -2]], [[0], [4]]), worker="b", examples=more.get("b", 3), rank=1, alpha=2)
    return [one, two]


def test_weighted_by_examples_by_hand(tmp_path: Path) -> None:
    report = aggregate(_two(tmp_path), StrategySpec(), into=_out(tmp_path))
    assert report.weights == {"a": 0.25, "b": 0.75}
    found = load(tmp_path / "out")
    assert found[A].tolist() == [[4.0, -1.0]]
    assert found[B].tolist() == [[1.0], [5.0]]
    assert (report.rank, report.dtype, report.error) == (1, "F32", None)
    assert update_in(tmp_path / "out").config.alpha == 2


def test_alike_by_hand(tmp_path: Path) -> None:
    report = aggregate(_two(tmp_path), StrategySpec(weighting="equal"), into=_out(tmp_path))
    assert report.weights == {"a": 0.5, "b": 0.5}
    assert load(tmp_path / "out")[A].tolist() == [[3.0, 0.0]]


def test_nobody_counts_for_more_than_max_examples(tmp_path: Path) -> None:
    updates = _two(tmp_path, b=1_000_000)
    report = aggregate(updates, StrategySpec(max_examples=3), into=_out(tmp_path))
    assert report.weights == {"a": 0.25, "b": 0.75}


@pytest.mark.parametrize("examples", [0, -50, True, 1.5])
def test_a_count_of_examples_that_is_none_is_refused(tmp_path: Path, examples: int) -> None:
    with pytest.raises(AdapterRefused, match="at least 1 is required"):
        aggregate(_two(tmp_path, b=examples), StrategySpec(), into=_out(tmp_path))


def test_fedprox_averages_like_fedavg(tmp_path: Path) -> None:
    updates = _two(tmp_path)
    aggregate(updates, StrategySpec(name="fedprox", mu=0.3), into=_out(tmp_path, "prox"))
    aggregate(updates, StrategySpec(), into=_out(tmp_path, "avg"))
    assert (tmp_path / "prox" / TENSORS).read_bytes() == (tmp_path / "avg" / TENSORS).read_bytes()


def test_another_alpha_is_put_into_b(tmp_path: Path) -> None:
    """Half the alpha and twice the B is the same update."""
    one = save(tmp_path / "a", _pair([[1, 2]], [[4], [8]]), worker="a", rank=1, alpha=2)
    two = save(tmp_path / "b", _pair([[1, 2]], [[8], [16]]), worker="b", rank=1, alpha=1)
    aggregate([one, two], StrategySpec(), into=_out(tmp_path))
    assert difference(products(tmp_path / "out"), products(tmp_path / "a")) == 0
    assert load(tmp_path / "out")[B].tolist() == [[4.0], [8.0]]


@pytest.mark.parametrize("lacking", ["a", "b"])
def test_a_tensor_that_one_lacks_is_a_refusal_and_never_shrinks(tmp_path: Path, lacking: str) -> None:
    rng = np.random.default_rng(0)
    for worker in "ab":
        arrays = factors(rng)
        if worker == lacking:
            arrays = {name: each for name, each in arrays.items() if Q not in name}
        save(tmp_path / worker, arrays, worker=worker)
    updates = [update_in(tmp_path / worker, worker=worker) for worker in "ab"]
    for strategy in ("fedavg", "fedavg_exact"):
        out = _out(tmp_path, strategy)
        with pytest.raises(AdapterRefused, match=f"is missing in the update of '{lacking}'") as caught:
            aggregate(updates, StrategySpec(name=strategy), into=out)
        assert caught.value.tensor == A
        assert list(out.iterdir()) == []


def test_other_shapes_and_ranks_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    one = save(tmp_path / "a", factors(rng), worker="a")
    wide = save(tmp_path / "b", factors(rng, shapes={Q: (7, 6), "model.layers.1.self_attn.v_proj": (6, 9)}), worker="b")
    more = save(tmp_path / "c", factors(rng, 3), worker="c", rank=3)
    with pytest.raises(AdapterRefused, match="has different shapes in the updates of 'b' and 'a'"):
        aggregate([one, wide], StrategySpec(), into=_out(tmp_path))
    with pytest.raises(AdapterRefused, match="requires equal ranks") as caught:
        aggregate([one, more], StrategySpec(), into=tmp_path / "out")
    assert "fedavg_exact" in str(caught.value)


def test_nobody_and_twice_the_same(tmp_path: Path) -> None:
    updates = _two(tmp_path)
    with pytest.raises(InputError, match="no updates"):
        aggregate([], StrategySpec(), into=tmp_path)
    with pytest.raises(InputError, match="'a' has two updates"):
        aggregate([updates[0], updates[0]], StrategySpec(), into=tmp_path)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_half_precision_in_and_out_and_float32_inside(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(1)
    updates = [save(tmp_path / f"{n}", factors(rng), worker=f"{n}", dtype=dtype) for n in range(3)]
    report = aggregate(updates, StrategySpec(), into=_out(tmp_path))
    assert report.dtype == dtype
    stored = [load(tmp_path / f"{n}") for n in range(3)]
    found = load(tmp_path / "out")
    for name in found:
        true = np.mean([each[name].astype(np.float64) for each in stored], axis=0)
        # The one rounding is that to the outcome's type: half of its last place.
        assert np.abs(found[name] - true).max() <= np.abs(true).max() * (2**-8 if dtype == "BF16" else 2**-11) * 1.001
    wide = aggregate(updates, StrategySpec(), into=_out(tmp_path, "wide"), dtype="F32")
    assert wide.dtype == "F32"
    exact = load(tmp_path / "wide")
    for name in found:
        assert np.array_equal(_rounded(exact[name], dtype), found[name])


def _rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    out = np.empty_like(values)
    widen(narrow(values, dtype), dtype, out)
    return out


def test_types_that_differ_become_float32(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    updates = [save(tmp_path / dtype, factors(rng), worker=dtype, dtype=dtype) for dtype in ("F32", "BF16", "F16")]
    assert aggregate(updates, StrategySpec(), into=_out(tmp_path)).dtype == "F32"


def test_bfloat16_rounds_to_the_nearest_and_ties_to_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -1.00390625, 3.3895314e38, 1e-40, 0.0], np.float32)
    found = _rounded(values, "BF16")
    assert found[:4].tolist() == [1.0, 1.0, 1.015625, -1.0]
    assert np.isfinite(found).all()
    assert found[-1] == 0.0


def test_what_the_type_cannot_hold_is_refused(tmp_path: Path) -> None:
    updates = [save(tmp_path / worker, _pair([[1e5, 0]], [[1], [1]]), worker=worker, rank=1) for worker in "ab"]
    with pytest.raises(AdapterRefused, match="values outside the range of F16") as caught:
        aggregate(updates, StrategySpec(), into=_out(tmp_path), dtype="F16")
    assert caught.value.tensor == A
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("name", ["fedavg", "median", "fedavg_exact", "krum", "multi_krum"])
@pytest.mark.parametrize("tensor", [A, B])
def test_a_value_that_is_not_finite_is_refused_even_if_nobody_checked(tmp_path: Path, name: str, tensor: str) -> None:
    rng = np.random.default_rng(1)
    updates = [save(tmp_path / f"{n}", factors(rng), worker=f"{n}") for n in range(5)]
    content = bytearray(updates[3].path.read_bytes())
    with AdapterFile(updates[3].path) as file:
        content[(at := file.tensors[tensor].start) : at + 4] = np.float32(np.nan).tobytes()
    updates[3].path.write_bytes(bytes(content))
    with pytest.raises(AdapterRefused) as caught:
        aggregate(updates, StrategySpec(name=name), into=_out(tmp_path))
    assert caught.value.tensor == tensor
    assert list((tmp_path / "out").iterdir()) == []


def test_layers_that_are_trained_whole_are_averaged_and_frozen_ones_copied(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    table = rng.standard_normal((5, 4)).astype(np.float32)
    base = f"{PREFIX}model.embed_tokens.base_layer.weight"
    heads = [np.full((2, 2), value, np.float32) for value in (1, 5)]
    updates = [
        save(
            tmp_path / f"{n}",
            {**factors(rng), HEAD: head, base: table},
            worker=f"{n}",
            modules_to_save=["lm_head"],
        )
        for n, head in enumerate(heads)
    ]
    for strategy in ("fedavg", "fedavg_exact"):
        aggregate(updates, StrategySpec(name=strategy), into=_out(tmp_path, strategy))
        found = load(tmp_path / strategy)
        assert found[HEAD].tolist() == [[3.0, 3.0], [3.0, 3.0]]
        assert np.array_equal(found[base], table)
    arrays = load(tmp_path / "1")
    write_tensors(updates[1].path, {**arrays, base: table + 1})
    with pytest.raises(AdapterRefused, match="belongs to the base model"):
        aggregate(updates, StrategySpec(), into=_out(tmp_path, "other"))


def test_the_outcome_is_what_hugging_face_loads(tmp_path: Path) -> None:
    aggregate(_two(tmp_path), StrategySpec(), into=_out(tmp_path))
    with AdapterFile(tmp_path / "out" / TENSORS) as file:
        assert file.metadata == {"format": "pt"}
        assert min(tensor.start for tensor in file.tensors.values()) % 8 == 0
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["adapter_config.json", TENSORS]


def test_large_tensors_are_averaged_over_all_their_blocks(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    shapes = {Q: (3, 150_001)}
    updates = [save(tmp_path / f"{n}", factors(rng, 1, shapes), worker=f"{n}", rank=1) for n in range(3)]
    stored = [load(tmp_path / f"{n}") for n in range(3)]
    aggregate(updates, StrategySpec(), into=_out(tmp_path))
    assert np.allclose(load(tmp_path / "out")[A], np.mean([each[A] for each in stored], axis=0), atol=1e-6)
    aggregate(updates, StrategySpec(name="median"), into=_out(tmp_path, "median"))
    assert np.array_equal(load(tmp_path / "median")[A], np.median([each[A] for each in stored], axis=0))


def test_equals_flowers_average_of_the_same_arrays(tmp_path: Path) -> None:
    """Flower multiplies, adds and divides array by array; so does the reference here, and Flower itself where it is."""
    rng = np.random.default_rng(4)
    counts = [3, 11, 7, 29]
    updates = [save(tmp_path / f"{n}", factors(rng), worker=f"{n}", examples=count) for n, count in enumerate(counts)]
    aggregate(updates, StrategySpec(), into=_out(tmp_path))
    found = load(tmp_path / "out")
    stored = [load(tmp_path / f"{n}") for n in range(len(counts))]
    for place, name in enumerate(found):
        total = sum(each[name].astype(np.float64) * count for each, count in zip(stored, counts, strict=True))
        assert found[name] == pytest.approx(total / sum(counts), rel=1e-5, abs=1e-7)
        if importlib.util.find_spec("flwr") is not None:
            from flwr.server.strategy.aggregate import aggregate as flowers

            theirs = flowers(
                [([each[name] for name in found], count) for each, count in zip(stored, counts, strict=True)]
            )
            assert found[name] == pytest.approx(theirs[place], rel=1e-5, abs=1e-7)
