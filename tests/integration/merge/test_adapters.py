"""Adapters with each other: every method, what it does to their sum, and which differences are in the way."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.integration.merge.conftest import Merge, llama, lora


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global load_file, save_file, torch, check
    pytest.importorskip("peft")

    import torch
    from safetensors.torch import load_file, save_file

    from tunefleet.workloads.merging import check


pytestmark = [
    pytest.mark.proof,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def three(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A base and two adapters, the first of them with rsLoRA, whose scale PEFT would give to the result."""
    base = llama(tmp_path / "base", dtype=torch.bfloat16)
    return base, lora(base, tmp_path / "a", seed=1, use_rslora=True), lora(base, tmp_path / "b", seed=2)


def _sum(base: Path, parts: list[tuple[float, float, Path]], module: str) -> torch.Tensor:
    found = []
    for weight, scale, folder in parts:
        tensors = load_file(folder / "adapter_model.safetensors")
        name = f"base_model.model.{module}.lora_"
        found.append(weight * scale * tensors[f"{name}B.weight"].float() @ tensors[f"{name}A.weight"].float())
    return torch.stack(found).sum(0)


@pytest.mark.parametrize("method", ["cat", "svd", "linear", "ties", "dare_linear", "dare_ties"])
def test_a_combination_is_one_adapter_and_says_how_far_it_is_from_the_sum(
    merge: Merge, three: tuple[Path, Path, Path], method: str
) -> None:
    base, first, second = three
    options: dict[str, Any] = {"svd_rank": 8} if method == "svd" else {}
    adapters = [{"path": str(first), "weight": 0.75}, {"path": str(second), "weight": 0.5}]
    ended = merge(base, *adapters, into="adapter", method=method, **options)
    result = ended.result
    module = "model.layers.1.mlp.up_proj"
    wanted = _sum(base, [(0.75, 8 / 4**0.5, first), (0.5, 8 / 4, second)], module)
    made = _sum(base, [(1.0, 1.0, ended.product)], module)
    apart = float((made - wanted).norm() / wanted.norm())
    assert result["error_of_sum"]["worst_module"] >= apart - 1e-4
    if method in {"cat", "svd"}:
        assert (apart, result["error_of_sum"]["overall"]) == pytest.approx((0, 0), abs=1e-4)
        assert result["rank"] == 8
    else:
        assert result["rank"] == 4
        assert result["error_of_sum"]["overall"] > 0.1
    assert result["verification"]["adapter_effect"] > 0
    again = merge(base, *adapters, into="adapter", method=method, verify=False, **options)
    first_made, second_made = (load_file(e.product / "adapter_model.safetensors") for e in (ended, again))
    assert all(torch.equal(first_made[name], second_made[name]) for name in first_made), "what is dropped is seeded"


def test_the_difference_that_is_in_the_way_is_named(merge: Merge, three: tuple[Path, Path, Path]) -> None:
    base, first, _ = three
    cases = [
        ({"r": 2}, "needs adapters of one rank; .* has 4, and .* has 2"),
        ({"target_modules": ["q_proj"]}, r"changes model\.layers\.0\.mlp\.down_proj, and .* does not"),
        ({"use_dora": True}, "uses DoRA, which is not a sum"),
        ({"modules_to_save": ["lm_head"]}, r"contains a complete lm_head\.weight"),
    ]
    for number, (config, said) in enumerate(cases):
        other = lora(base, base.parent / f"other-{number}", **config)
        ended = merge(base, first, other, into="adapter", method="linear")
        assert ended.code == 2
        assert re.search(said, ended.status.error or ""), ended.status.error
    wide = llama(base.parent / "wide", hidden_size=64)
    ended = merge(base, lora(wide, base.parent / "of-another"))
    assert re.search(
        r"was made for a .* of the shape \[64, 64\], and the base has \[32, 64\]", ended.status.error or ""
    )


def test_a_broken_adapter_is_not_carried_into_another(merge: Merge, three: tuple[Path, Path, Path]) -> None:
    base, first, second = three
    file = second / "adapter_model.safetensors"
    tensors = load_file(file)
    next(iter(tensors.values()))[0, 0] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})
    ended = merge(base, first, second, into="adapter", method="cat", verify=False)
    assert "not finite" in (ended.status.error or "")
    assert not (ended.folder.root / "final_lora").exists()


def test_a_proof_that_does_not_fit_into_memory_is_not_begun(
    merge: Merge, three: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, first, second = three
    monkeypatch.setattr(check.psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 10))
    ended = merge(base, first, second, into="adapter", method="cat")
    assert "merge.verify: false" in (ended.status.error or "")
