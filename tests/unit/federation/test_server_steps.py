"""Server optimisers and norm clipping, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.federation.adapters import PREFIX, Q, difference, factors, load, products, save
from tunefleet.errors import AdapterRefused, InputError
from tunefleet.federation import AdapterFile, Update, aggregate, update_in
from tunefleet.spec.options.federation_options import StrategySpec

A = f"{PREFIX}{Q}.lora_A.weight"
B = f"{PREFIX}{Q}.lora_B.weight"
HEAD = f"{PREFIX}lm_head.weight"


def _adapter(tmp_path: Path, name: str, a: float, b: float = 1.0, **more: float) -> Update:
    arrays = {A: np.full((1, 2), a, np.float32), B: np.full((2, 1), b, np.float32)}
    return save(tmp_path / name, arrays, worker=name, rank=1, alpha=more.get("alpha", 1))


def _step(
    tmp_path: Path, spec: StrategySpec, updates: list[Update], previous: Update | None, number: int
) -> tuple[float, Update]:
    into = tmp_path / f"v{number}"
    into.mkdir()
    before = tmp_path / f"state{number - 1}"
    aggregate(
        updates,
        spec,
        into=into,
        previous=previous,
        state=before if before.exists() else None,
        new_state=tmp_path / f"state{number}",
    )
    return float(load(into)[A][0, 0]), update_in(into)


def test_the_first_version_is_the_average_and_the_moments_begin_at_zero(tmp_path: Path) -> None:
    updates = [_adapter(tmp_path, "a", 1), _adapter(tmp_path, "b", 3)]
    for name in ("fedadam", "fedyogi", "diloco"):
        folder = tmp_path / name
        folder.mkdir()
        found, _ = _step(folder, StrategySpec(name=name), updates, None, 1)
        assert found == 2.0
        with AdapterFile(folder / "state1") as state:
            assert state.metadata["tunefleet.rounds"] == "0"
            assert not any(state.whole(each).any() for each in state.tensors)


def test_fedadam_by_hand(tmp_path: Path) -> None:
    spec = StrategySpec(name="fedadam", server_lr=0.1, beta1=0.5, beta2=0.75, tau=0.5)
    previous = _adapter(tmp_path, "global", 1.0)
    first, version = _step(tmp_path, spec, [_adapter(tmp_path, "a", 3.0)], previous, 1)
    # change 2: m = 0.5 · 2 = 1, v = 0.25 · 4 = 1
    assert first == pytest.approx(1 + 0.1 * 1 / (1 + 0.5))
    change = 3.0 - first
    second, _ = _step(tmp_path, spec, [_adapter(tmp_path, "b", 3.0)], version, 2)
    m, v = 0.5 * 1 + 0.5 * change, 0.75 * 1 + 0.25 * change**2
    assert second == pytest.approx(first + 0.1 * m / (v**0.5 + 0.5))
    with AdapterFile(tmp_path / "state2") as state:
        assert state.metadata["tunefleet.rounds"] == "2"
        assert state.whole(f"v/{A}")[0, 0] == pytest.approx(v)


def test_fedyogi_by_hand(tmp_path: Path) -> None:
    spec = StrategySpec(name="fedyogi", server_lr=0.1, beta1=0.5, beta2=0.75, tau=0.5)
    previous = _adapter(tmp_path, "global", 0.0)
    first, version = _step(tmp_path, spec, [_adapter(tmp_path, "a", 4.0)], previous, 1)
    # change 4: m = 2, v = 0 + 0.25 · 16 = 4
    assert first == pytest.approx(0.1 * 2 / (2 + 0.5))
    second, _ = _step(tmp_path, spec, [_adapter(tmp_path, "b", first + 1.0)], version, 2)
    # change 1: its square is under v, so v falls by 0.25 · 1, and not by a quarter of itself as Adam's would
    assert second == pytest.approx(first + 0.1 * (0.5 * 2 + 0.5 * 1) / (3.75**0.5 + 0.5))


def test_diloco_by_hand(tmp_path: Path) -> None:
    spec = StrategySpec(name="diloco", server_lr=0.5, momentum=0.9)
    previous = _adapter(tmp_path, "global", 1.0)
    first, version = _step(tmp_path, spec, [_adapter(tmp_path, "a", 3.0)], previous, 1)
    # change 2, momentum 2, Nesterov: 2 + 0.9 · 2
    assert first == pytest.approx(1 + 0.5 * (2 + 0.9 * 2))
    second, _ = _step(tmp_path, spec, [_adapter(tmp_path, "b", first + 1)], version, 2)
    momentum = 0.9 * 2 + 1
    assert second == pytest.approx(first + 0.5 * (1 + 0.9 * momentum))


def test_an_outer_step_of_one_without_momentum_is_the_average(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    updates = [save(tmp_path / f"w{n}", factors(rng), worker=f"w{n}", examples=n + 1) for n in range(3)]
    previous = save(tmp_path / "global", factors(rng))
    for name, spec in (("avg", StrategySpec()), ("outer", StrategySpec(name="diloco", server_lr=1, momentum=0))):
        (tmp_path / name).mkdir()
        aggregate(updates, spec, into=tmp_path / name, previous=previous, new_state=tmp_path / f"{name}.state")
    assert difference(load(tmp_path / "outer"), load(tmp_path / "avg")) < 1e-6


def test_the_global_adapter_may_have_another_alpha(tmp_path: Path) -> None:
    """Half the B at twice the alpha is the same adapter, so nothing has changed and nothing is changed."""
    previous = _adapter(tmp_path, "global", 1.0, b=0.5, alpha=2)
    spec = StrategySpec(name="diloco")
    _step(tmp_path, spec, [_adapter(tmp_path, "a", 1.0, b=1.0)], previous, 1)
    assert difference(products(tmp_path / "v1"), products(tmp_path / "global")) == 0


def test_a_state_of_something_else_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    updates, previous = [_adapter(tmp_path, "a", 1)], _adapter(tmp_path, "global", 2)
    _step(tmp_path, StrategySpec(name="fedadam"), updates, previous, 1)
    for spec, others in (
        (StrategySpec(name="fedyogi"), updates),
        (StrategySpec(name="diloco"), updates),
        (StrategySpec(name="fedadam"), [save(tmp_path / "x", factors(rng), worker="x")]),
    ):
        into = tmp_path / "out"
        into.mkdir(exist_ok=True)
        with pytest.raises(InputError, match=f"does not belong to {spec.name}"):
            aggregate(
                others,
                spec,
                into=into,
                previous=others[0],
                state=tmp_path / "state1",
                new_state=tmp_path / "new",
            )
        assert list(into.iterdir()) == []
        assert not (tmp_path / "new").exists()


def test_a_place_for_the_state_is_needed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="new_state"):
        aggregate([_adapter(tmp_path, "a", 1)], StrategySpec(name="fedadam"), into=tmp_path)


def test_a_global_adapter_of_another_rank_is_refused_where_it_counts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    updates = [save(tmp_path / "w", factors(rng, 2), worker="w")]
    previous = save(tmp_path / "global", factors(rng, 3), worker="global", rank=3)
    with pytest.raises(AdapterRefused, match="requires equal ranks"):
        aggregate(updates, StrategySpec(name="diloco"), into=tmp_path, previous=previous, new_state=tmp_path / "s")
    (tmp_path / "out").mkdir()
    aggregate(updates, StrategySpec(), into=tmp_path / "out", previous=previous)


def _change(folder: Path, previous: Path) -> float:
    new, old = products(folder), products(previous)
    return float(np.sqrt(sum(np.sum((new[module] - old[module]) ** 2) for module in new)))


@pytest.mark.parametrize("name", ["fedavg", "fedavg_exact"])
@pytest.mark.parametrize("most", [0.01, 1.0, 20.0])
def test_one_update_moves_the_global_adapter_no_further_than_allowed(tmp_path: Path, name: str, most: float) -> None:
    rng = np.random.default_rng(1)
    update = save(tmp_path / "w", factors(rng), worker="w")
    previous = save(tmp_path / "global", factors(rng), worker="global")
    (tmp_path / "out").mkdir()
    more = {"rank": 4} if name == "fedavg_exact" else {}
    report = aggregate(
        [update], StrategySpec(name=name, clip_norm=most, **more), into=tmp_path / "out", previous=previous
    )
    assert report.norms == pytest.approx({"w": _change(tmp_path / "w", tmp_path / "global")}, rel=1e-5)
    assert 0 < report.clipped["w"] < 1
    assert _change(tmp_path / "out", tmp_path / "global") == pytest.approx(most, rel=1e-3)


@pytest.mark.parametrize("name", ["fedavg", "fedavg_exact", "median"])
def test_before_the_first_version_the_update_itself_is_shortened(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(2)
    updates = [save(tmp_path / f"w{n}", factors(rng), worker=f"w{n}") for n in range(1 if name != "median" else 3)]
    (tmp_path / "out").mkdir()
    report = aggregate(updates, StrategySpec(name=name, clip_norm=2.0), into=tmp_path / "out")
    assert set(report.clipped) == {update.worker for update in updates}
    if name != "median":
        assert np.sqrt(sum(np.sum(each**2) for each in products(tmp_path / "out").values())) == pytest.approx(
            2.0, rel=1e-5
        )
        assert (
            difference(
                {module: each * report.clipped["w0"] for module, each in products(tmp_path / "w0").items()},
                products(tmp_path / "out"),
            )
            < 1e-5
        )


def test_what_is_short_enough_is_left_as_it_is(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    updates = [save(tmp_path / f"w{n}", factors(rng), worker=f"w{n}") for n in range(3)]
    previous = save(tmp_path / "global", factors(rng), worker="global")
    for name in ("fedavg", "fedavg_exact", "trimmed_mean"):
        for most in (None, 1e6):
            (tmp_path / f"{name}{most}").mkdir()
            report = aggregate(
                updates, StrategySpec(name=name, clip_norm=most), into=tmp_path / f"{name}{most}", previous=previous
            )
            assert report.clipped == {}
        assert difference(load(tmp_path / f"{name}None"), load(tmp_path / f"{name}1000000.0")) == 0


def test_clipping_counts_whole_layers_and_shortens_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    arrays = factors(rng)
    more = {"modules_to_save": ["lm_head"]}
    update = save(tmp_path / "w", {**arrays, HEAD: np.full((2, 2), 5, np.float32)}, worker="w", **more)
    previous = save(tmp_path / "global", {**arrays, HEAD: np.full((2, 2), 1, np.float32)}, worker="global", **more)
    for name in ("fedavg", "fedavg_exact"):
        (tmp_path / name).mkdir()
        report = aggregate([update], StrategySpec(name=name, clip_norm=4), into=tmp_path / name, previous=previous)
        assert report.norms == pytest.approx({"w": 8.0})
        assert report.clipped == pytest.approx({"w": 0.5})
        assert load(tmp_path / name)[HEAD] == pytest.approx(np.full((2, 2), 3.0), rel=1e-5)


def test_clipping_holds_a_scaled_poison_down(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    start = factors(rng)
    previous = save(tmp_path / "global", start, worker="global")
    good = [
        save(
            tmp_path / f"w{n}",
            {
                name: each + np.float32(0.01) * rng.standard_normal(each.shape, np.float32)
                for name, each in start.items()
            },
            worker=f"w{n}",
        )
        for n in range(3)
    ]
    bad = save(tmp_path / "bad", {name: each * 1000 for name, each in start.items()}, worker="bad")
    (tmp_path / "out").mkdir()
    report = aggregate([*good, bad], StrategySpec(clip_norm=1.0), into=tmp_path / "out", previous=previous)
    assert set(report.clipped) == {"bad"}
    assert _change(tmp_path / "out", tmp_path / "global") < 1.0


def test_the_median_of_shortened_updates(tmp_path: Path) -> None:
    """Changes of A by 2, 4 and 6 where 4 are allowed: the last counts as 4."""
    previous = _adapter(tmp_path, "global", 0.0)
    size = np.sqrt(2 * 2)
    updates = [_adapter(tmp_path, f"w{n}", value) for n, value in enumerate((2.0, 4.0, 6.0))]
    (tmp_path / "out").mkdir()
    report = aggregate(
        updates, StrategySpec(name="trimmed_mean", clip_norm=4 * size), into=tmp_path / "out", previous=previous
    )
    assert report.clipped == pytest.approx({"w2": 4 / 6})
    assert load(tmp_path / "out")[A] == pytest.approx(np.full((1, 2), 4.0), rel=1e-6)
