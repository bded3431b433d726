"""Averages against PEFT's own arithmetic: what it merges from our outcome is the mean of what it merges from each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.merge.conftest import gpt2, llama, lora
from tunefleet.errors import AdapterRefused
from tunefleet.federation import (
    RESIDUAL,
    AdapterFile,
    Update,
    aggregate,
    check,
    config_of,
    contract_of,
    refit,
    update_in,
)
from tunefleet.federation.aggregation.strategy import product_error
from tunefleet.spec.options.federation_options import StrategySpec


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global AutoModelForCausalLM, PeftModel, torch
    pytest.importorskip("torch")
    pytest.importorskip("peft")

    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM


pytestmark = [
    pytest.mark.proof,
    pytest.mark.torch,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
Weights = dict[str, Any]
COUNTS = (1, 2, 5)
QUARTER = {"target_modules": ["q_proj", "v_proj"]}


def _merged(base: Path, *adapters: Path) -> Weights:
    """The base's weights after PEFT has merged these adapters one after the other."""
    model: Any = AutoModelForCausalLM.from_pretrained(str(base), dtype=torch.float32)
    for adapter in adapters:
        model = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    return {name: each.detach().double() for name, each in model.state_dict().items()}


def _mean(base: Path, updates: list[Update]) -> Weights:
    total = sum(update.num_examples for update in updates)
    found: Weights = {}
    for update in updates:
        for name, each in _merged(base, update.path.parent).items():
            found[name] = found.get(name, 0) + each * (update.num_examples / total)
    return found


def _distance(one: Weights, other: Weights, base: Weights) -> float:
    """Distance of two merged models, as part of how far the second is from the base."""
    apart = sum(float((one[name] - other[name]).square().sum()) for name in other)
    moved = sum(float((other[name] - base[name]).square().sum()) for name in other)
    return (apart / moved) ** 0.5


def _updates(base: Path, tmp_path: Path, *configs: dict[str, Any]) -> list[Update]:
    return [
        update_in(lora(base, tmp_path / f"w{n}", seed=n + 1, **each), worker=f"w{n}", num_examples=count)
        for n, (each, count) in enumerate(zip(configs, COUNTS, strict=False))
    ]


def _run(tmp_path: Path, updates: list[Update], **spec: Any) -> tuple[Path, float | None]:
    out = tmp_path / "-".join(str(each) for each in spec.values())
    out.mkdir()
    report = aggregate(updates, StrategySpec(**spec), into=out)
    return out, report.error


CASES: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "plain": (llama, [QUARTER] * 3),
    "all linear layers": (llama, [{}] * 3),
    "rslora": (llama, [{"use_rslora": True}] * 3),
    "ranks and alphas that differ": (
        llama,
        [{"r": 2, "lora_alpha": 3}, {"r": 6, "lora_alpha": 30, "use_rslora": True}, {"r": 4, "lora_alpha": 1}],
    ),
    "patterns": (
        llama,
        [
            {
                "r": 3,
                "rank_pattern": {"q_proj": 5, "model.layers.1.mlp.up_proj": 2},
                "alpha_pattern": {"layers.0.self_attn.v_proj": 17, "^model.layers.1.self_attn.q_proj": 5},
            }
        ]
        * 2,
    ),
    "whole layers": (lambda folder: llama(folder, tied=False), [{**QUARTER, "modules_to_save": ["lm_head"]}] * 2),
    "embeddings": (
        lambda folder: llama(folder, tied=False),
        [{"target_modules": ["embed_tokens", "q_proj"]}] * 2,
    ),
    "turned weights": (gpt2, [{"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}] * 3),
    "turned weights and embeddings": (
        gpt2,
        [{"target_modules": ["c_attn", "wpe"], "fan_in_fan_out": True, "r": 2}] * 2,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_merged_averages_are_averages_of_merged_models(tmp_path: Path, case: str) -> None:
    make, configs = CASES[case]
    base = make(tmp_path / "base")
    updates = _updates(base, tmp_path, *configs)
    plain, true = _merged(base), _mean(base, updates)

    stack, error = _run(tmp_path, updates, name="fedavg_exact", output="stack")
    assert error == 0
    assert _distance(_merged(base, stack), true, plain) < 1e-5

    best, lost = _run(tmp_path, updates, name="fedavg_exact")
    if case == "embeddings":
        with pytest.raises(AdapterRefused, match="would undo a merged residual"):
            _run(tmp_path, updates, name="fedavg_exact", output="residual")
    else:
        pair, left = _run(tmp_path, updates, name="fedavg_exact", output="residual")
        assert lost == left
        # The rest holds no whole layers: the adapter that does is merged last.
        assert _distance(_merged(base, pair / RESIDUAL, pair), true, plain) < 1e-5

    total = sum(update.num_examples for update in updates)
    measured = product_error(updates, {each.worker: each.num_examples / total for each in updates}, update_in(best))
    found = _merged(base, best)
    for module, layer in measured.items():
        name = f"{module}.weight"
        moved = float((true[name] - plain[name]).norm())
        apart = float((found[name] - true[name]).norm())
        assert layer.norm == pytest.approx(moved, rel=1e-4), module
        assert layer.norm * layer.error == pytest.approx(apart, rel=1e-3, abs=1e-5 * moved), module


def test_the_mean_of_factors_is_what_peft_makes_of_mean_factors(tmp_path: Path) -> None:
    """And it is not the mean of the updates: by how much is what `product_error` says."""
    base = llama(tmp_path / "base")
    updates = _updates(base, tmp_path, QUARTER, QUARTER, QUARTER)
    out, _ = _run(tmp_path, updates, name="fedavg")
    plain, true, found = _merged(base), _mean(base, updates), _merged(base, out)
    weights = {update.worker: update.num_examples / 8 for update in updates}
    measured = product_error(updates, weights, update_in(out))
    error = (
        sum((each.norm * each.error) ** 2 for each in measured.values())
        / sum(each.norm**2 for each in measured.values())
    ) ** 0.5
    assert error > 0.3
    assert _distance(found, true, plain) == pytest.approx(error, rel=1e-4)


@pytest.mark.parametrize("rank", [2, 4, 9])
def test_refit_is_the_nearest_of_that_rank(tmp_path: Path, rank: int) -> None:
    base = llama(tmp_path / "base")
    (update,) = _updates(base, tmp_path, {"r": 6})
    like = config_of({**update.config.raw, "r": rank, "lora_alpha": 5, "use_rslora": True})
    (tmp_path / "out").mkdir()
    report = refit(update, like, tmp_path / "out")
    plain = _merged(base)
    apart = _distance(_merged(base, tmp_path / "out"), _merged(base, update.path.parent), plain)
    assert apart == pytest.approx(report.error or 0.0, abs=1e-5)
    assert (apart < 1e-5) == (rank >= 6)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_half_precision_loads_in_peft(tmp_path: Path, dtype: str) -> None:
    base = llama(tmp_path / "base")
    updates = _updates(base, tmp_path, QUARTER, QUARTER)
    for name in ("wide", "narrow"):
        (tmp_path / name).mkdir()
    aggregate(updates, StrategySpec(), into=tmp_path / "wide")
    aggregate(updates, StrategySpec(), into=tmp_path / "narrow", dtype=dtype)
    plain = _merged(base)
    apart = _distance(_merged(base, tmp_path / "narrow"), _merged(base, tmp_path / "wide"), plain)
    assert 0 < apart < (1e-2 if dtype == "BF16" else 1e-3)


def test_what_peft_saves_passes_the_contract_of_its_like(tmp_path: Path) -> None:
    base = llama(tmp_path / "base")
    one, other = _updates(base, tmp_path, {}, {})
    with AdapterFile(one.path) as first, AdapterFile(other.path) as second:
        contract = contract_of(one.config, first)
        found = check(contract, other.config, second)
    moved = _merged(base, other.path.parent)
    plain = _merged(base)
    assert found.norm == pytest.approx(
        sum(float((moved[name] - plain[name]).square().sum()) for name in plain) ** 0.5, rel=1e-4
    )


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"bias": "lora_only"}, "trains biases"),
        ({"lora_bias": True}, "bias on lora_B"),
        ({"init_lora_weights": "pissa"}, "changes the base model"),
        ({"init_lora_weights": "olora"}, "changes the base model"),
        ({"trainable_token_indices": [1, 2]}, "trainable tokens"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "replicated layers"),
    ],
)
def test_variants_of_a_real_peft_are_refused_by_name(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    base = llama(tmp_path / "base")
    folder = lora(base, tmp_path / "x", **{**QUARTER, **more})
    with pytest.raises(AdapterRefused) as caught:
        update_in(folder)
    assert words in str(caught.value)
