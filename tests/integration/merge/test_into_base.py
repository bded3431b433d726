"""LoRA adapters into their base: what the merged model says, its files, and everything that must not be guessed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.merge.conftest import BUILTIN, Merge, gpt2, llama, lora


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global load_file, save_file, torch
    pytest.importorskip("peft")

    import torch
    from safetensors.torch import load_file, save_file


pytestmark = [
    pytest.mark.proof,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"use_rslora": True},
        {"use_dora": True},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 32}},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"target_modules": ["q_proj", "lm_head"]},
        {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    ],
    ids=["plain", "rslora", "dora", "patterns", "whole-head", "embedding", "head", "tied-whole"],
)
def test_every_kind_of_adapter_gives_the_logits_of_base_and_adapter(
    merge: Merge, tmp_path: Path, config: dict[str, Any]
) -> None:
    base = llama(tmp_path / "base")
    result = merge(base, lora(base, tmp_path / "adapter", **config)).result
    proof = result["verification"]
    assert proof["relative_error"] < 1e-4
    assert proof["adapter_effect"] > 0.05, "the adapter changes nothing, so the proof proves nothing"


def test_conv1d_biases_and_a_body_without_its_prefix(merge: Merge, tmp_path: Path) -> None:
    base = gpt2(tmp_path / "base")
    adapter = lora(base, tmp_path / "adapter", target_modules=["c_attn", "c_proj"], bias="all")
    assert merge(base, adapter).result["verification"]["relative_error"] < 1e-4
    short = tmp_path / "short"
    shutil.copytree(base, short)
    tensors = load_file(short / "model.safetensors")
    save_file({name.removeprefix("transformer."): each for name, each in tensors.items()}, short / "model.safetensors",
              {"format": "pt"})  # fmt: skip
    ended = merge(short, adapter)
    assert ended.result["verification"]["relative_error"] < 1e-4
    assert "h.0.attn.c_attn.weight" in load_file(ended.product / "model.safetensors")


def test_shards_types_and_files_are_those_of_the_base(merge: Merge, tmp_path: Path) -> None:
    base = llama(tmp_path / "base", tied=False, dtype=torch.bfloat16, max_shard_size="24KB")
    (base / "generation_config.json").write_text('{"max_new_tokens": 7}')
    adapter = lora(base, tmp_path / "adapter", target_modules=["q_proj"])
    ended = merge(base, adapter)
    result = ended.result
    shards = sorted(path.name for path in base.glob("*.safetensors"))
    assert len(shards) > 2
    assert [each["name"] for each in result["shards"]] == shards
    assert result["dtypes"] == ["BF16"]
    assert json.loads((ended.product / "generation_config.json").read_bytes()) == {"max_new_tokens": 7}
    assert result["tensors"]["merged"] == 2
    before = {name: each for shard in shards for name, each in load_file(base / shard).items()}
    after = {name: each for shard in shards for name, each in load_file(ended.product / shard).items()}
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 1)}
    factors = load_file(adapter / "adapter_model.safetensors")
    prefix = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    product = factors[f"{prefix}B.weight"].float() @ factors[f"{prefix}A.weight"].float() * 2
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(after[name], (before[name].float() + product).to(torch.bfloat16))


def test_several_adapters_are_added_exactly_with_their_weights(merge: Merge, tmp_path: Path) -> None:
    base = llama(tmp_path / "base", tied=False)
    first = lora(base, tmp_path / "first", r=2, target_modules=["q_proj", "v_proj"])
    second = lora(base, tmp_path / "second", r=4, seed=2, use_rslora=True)
    result = merge(base, {"path": str(first), "weight": 0.5}, {"path": str(second), "weight": -1.5}).result
    assert result["verification"]["relative_error"] < 1e-4
    parents = result["parents"]
    assert [each["weight"] for each in parents["adapters"]] == [0.5, -1.5]
    assert len({parents["base"]["digest"], *(each["digest"] for each in parents["adapters"])}) == 3
    assert merge(base, {"path": str(first), "weight": 0.5}).result["parents"]["base"] == parents["base"]


def test_a_vocabulary_that_grew_goes_into_the_model_and_its_config(merge: Merge, tmp_path: Path) -> None:
    for tied in (True, False):
        base = llama(tmp_path / f"base-{tied}", tied=tied)
        ended = merge(base, lora(base, tmp_path / f"adapter-{tied}", rows=100))
        assert ended.result["verification"]["relative_error"] < 1e-4
        assert ended.result["vocabulary"]["rows"] == 100
        assert json.loads((ended.product / "config.json").read_bytes())["vocab_size"] == 100


def test_the_tokenizer_and_the_template_of_the_adapter_are_carried(merge: Merge, tmp_path: Path) -> None:
    from tunefleet.workloads import assets

    adapter = lora(BUILTIN, tmp_path / "adapter")
    plain = merge(BUILTIN, adapter)
    folder = assets.locate(BUILTIN, "model")
    names = {path.name for path in folder.iterdir() if path.is_file()}
    assert {path.name for path in plain.product.iterdir()} == names
    assert plain.result["vocabulary"] == {"tokens": 2048, "rows": 2048, "tokenizer_of": "base"}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, adapter / name)
    (adapter / "chat_template.jinja").write_text("{{ messages[0].content }}")
    own = merge(BUILTIN, adapter)
    assert (own.product / "chat_template.jinja").read_text() == "{{ messages[0].content }}"
    assert str(adapter) in own.result["vocabulary"]["tokenizer_of"]


def _config(adapter: Path, **changes: Any) -> Path:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))
    return adapter


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ({"kasa_config": {"beta": 1}}, "uses kasa_config, which cannot be merged exactly"),
        ({"trainable_token_indices": [1]}, "uses trainable_token_indices"),
        ({"init_lora_weights": "pissa"}, "was initialized with init_lora_weights: pissa"),
        ({"peft_type": "IA3"}, "only LoRA adapters"),
        ({"r": 8}, "sets rank 8 for .*, its file has 4"),
    ],
    ids=["kasa", "tokens", "pissa", "ia3", "rank"],
)
def test_what_is_not_understood_is_refused_by_name(
    merge: Merge, tmp_path: Path, spoil: dict[str, Any], said: str
) -> None:
    base = llama(tmp_path / "base")
    ended = merge(base, _config(lora(base, tmp_path / "adapter"), **spoil))
    assert ended.code == 2
    assert ended.status.error is not None
    assert re.search(said, ended.status.error), ended.status.error
    assert not list(ended.folder.root.glob("final_*"))


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
def test_what_is_asked_for_in_bf16_is_summed_in_float32_and_rounded_once(
    merge: Merge, tmp_path: Path, stored: str
) -> None:
    base = llama(tmp_path / "base", tied=False, dtype=getattr(torch, stored), max_shard_size="24KB")
    adapter = lora(base, tmp_path / "adapter", target_modules=["q_proj"])
    ended = merge(base, adapter, dtype="bfloat16")
    result = ended.result
    assert result["dtypes"] == ["BF16"]
    assert result["verification"]["tolerance"] == 4e-2
    config = json.loads((ended.product / "config.json").read_bytes())
    assert (config["dtype"], config.get("torch_dtype")) == ("bfloat16", None)
    before = {name: each for path in base.glob("*.safetensors") for name, each in load_file(path).items()}
    after = {name: each for path in ended.product.glob("*.safetensors") for name, each in load_file(path).items()}
    index = json.loads((ended.product / "model.safetensors.index.json").read_bytes())
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in after.values())
    factors = load_file(adapter / "adapter_model.safetensors")
    name = "model.layers.0.self_attn.q_proj"
    a, b = (factors[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
    exact = torch.addmm(before[f"{name}.weight"].float(), b.float(), a.float(), alpha=2.0)
    assert torch.equal(after[f"{name}.weight"], exact.bfloat16()), "the sum was rounded before it was complete"
    for other in set(before) - {f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 1)}:
        assert torch.equal(after[other], before[other].bfloat16())
