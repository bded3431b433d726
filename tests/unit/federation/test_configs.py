"""What a PEFT config may say: LoRA and its scales; every other variant is refused by its name."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.unit.federation.adapters import Q, config
from tunefleet.errors import AdapterRefused
from tunefleet.federation import AdapterConfig, config_of, read_config


def _read(**more: Any) -> AdapterConfig:
    return read_config(json.dumps({**config(8, 16), **more}).encode())


def test_a_plain_config() -> None:
    found = _read()
    assert (found.rank, found.alpha, found.use_rslora) == (8, 16.0, False)
    assert found.targets == frozenset({"q_proj", "v_proj"})
    assert found.base_model == "builtin:tiny"
    assert found.scale_of(Q, 8) == 2.0


def test_rslora_divides_by_the_root_of_the_rank() -> None:
    assert _read(use_rslora=True).scale_of(Q, 16) == 4.0


def test_patterns_name_modules_as_peft_matches_them() -> None:
    found = _read(
        rank_pattern={"layers.0.self_attn.q_proj": 4, "v_proj": 2},
        alpha_pattern={"^model.layers.0.self_attn.q_proj": 32},
    )
    assert found.rank_of(Q) == 4
    assert found.rank_of("model.layers.1.self_attn.v_proj") == 2
    assert found.rank_of("model.layers.1.self_attn.my_v_proj") == 8
    assert found.scale_of(Q, 4) == 8.0
    assert found.scale_of("other." + Q, 4) == 4.0


@pytest.mark.parametrize("pattern", ["(a+)+$", "q_proj|v_proj", ".*q", "a[b]", "x" * 300, ""])
def test_a_pattern_that_is_a_program_is_refused(pattern: str) -> None:
    with pytest.raises(AdapterRefused, match="only module names are supported"):
        _read(rank_pattern={pattern: 4})


def test_a_rank_for_each_of_many_modules_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = [f"model.layers.{layer}.mlp.{name}" for layer in range(200) for name in ("up", "gate", "down")]
    found = _read(rank_pattern={module: number % 8 + 1 for number, module in enumerate(modules)})
    compiled: list[str] = []
    real = re.compile

    def counted(pattern: str) -> re.Pattern[str]:
        compiled.append(pattern)
        return real(pattern)

    monkeypatch.setattr(re, "compile", counted)
    assert [found.rank_of(module) for module in modules] == [number % 8 + 1 for number in range(600)]
    assert len(compiled) == len(set(compiled)) == 600


def test_patterns_beyond_count_are_refused() -> None:
    with pytest.raises(AdapterRefused, match=r"alpha_pattern has 4,097 patterns; the limit is 4,096"):
        _read(alpha_pattern={f"layers.{number}": 4 for number in range(4097)})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"peft_type": "IA3"}, "'IA3'; only LORA"),
        ({"peft_type": None}, "'None'; only LORA"),
        ({"use_dora": True}, "DoRA"),
        ({"use_qalora": True}, "QA-LoRA"),
        ({"lora_bias": True}, "bias on lora_B"),
        ({"bias": "all"}, "trains biases"),
        ({"bias": "lora_only"}, "trains biases"),
        ({"trainable_token_indices": [1]}, "trainable tokens"),
        ({"target_parameters": ["experts.w1"]}, "bare parameters"),
        ({"layer_replication": [[0, 2]]}, "replicated"),
        ({"alora_invocation_tokens": [1]}, "activated LoRA"),
        ({"megatron_config": {"a": 1}}, "Megatron"),
        ({"ensure_weight_tying": True}, "tied layers"),
        ({"init_lora_weights": "pissa"}, "'pissa', which changes the base model"),
        ({"init_lora_weights": "pissa_niter_4"}, "changes the base model"),
        ({"init_lora_weights": "olora"}, "changes the base model"),
        ({"init_lora_weights": "loftq"}, "changes the base model"),
        ({"init_lora_weights": ["gaussian"]}, "changes the base model"),
        ({"use_next_years_lora": True}, "the unknown key 'use_next_years_lora'"),
        ({"r": 0}, "r in adapter_config.json is '0'"),
        ({"r": True}, "r in adapter_config.json is 'True'"),
        ({"r": "8"}, "r in"),
        ({"r": None}, "r in"),
        ({"lora_alpha": 0}, "lora_alpha in"),
        ({"lora_alpha": -1}, "lora_alpha in"),
        ({"lora_alpha": 1e300}, "lora_alpha in"),
        ({"lora_alpha": "16"}, "lora_alpha in"),
        ({"use_rslora": 1}, "use_rslora in"),
        ({"target_modules": [1]}, "target_modules in"),
        ({"modules_to_save": "lm_head"}, "modules_to_save in"),
        ({"rank_pattern": [4]}, "rank_pattern in"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern q_proj"),
        ({"base_model_name_or_path": 3}, "base_model_name_or_path"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(more: dict[str, Any], words: str) -> None:
    with pytest.raises(AdapterRefused) as caught:
        _read(**more)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "more",
    [
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": False},
        {"loftq_config": {}},
        {"qalora_group_size": 16},
        {"use_next_years_lora": False, "and_its_config": None, "and_its_list": []},
        {"auto_mapping": {"parent_library": "x"}},
        {"bias": None},
        {"target_modules": ".*q_proj"},
    ],
)
def test_what_says_nothing_about_the_values_is_taken(more: dict[str, Any]) -> None:
    assert _read(**more).rank == 8


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"r": 8, "r": 9}', b"x" * (2 << 20), b"[" * 90_000, b"\xff"])
def test_what_is_no_config_is_refused(text: bytes) -> None:
    with pytest.raises(AdapterRefused, match=r"adapter_config\.json"):
        read_config(text)


def test_a_published_config_imports_nothing_and_has_another_rank_at_the_same_scale() -> None:
    found = _read(auto_mapping={"base_model_class": "os", "parent_library": "os"}, rank_pattern={"q_proj": 4})
    written = json.loads(found.to_json())
    assert "auto_mapping" not in written
    wider = found.resized(24)
    assert (wider.rank, wider.alpha, wider.rank_pattern) == (24, 48.0, {})
    assert wider.scale_of("x", 24) == found.scale_of("x", 8)
    assert json.loads(wider.to_json())["lora_alpha"] == 48
    assert type(json.loads(wider.to_json())["lora_alpha"]) is int
    rooted = config_of({**config(4, 6), "use_rslora": True}).resized(9)
    assert rooted.scale_of("x", 9) == pytest.approx(3.0)
    plain = rooted.unscaled(5)
    assert plain.scale_of("x", 5) == 1.0
