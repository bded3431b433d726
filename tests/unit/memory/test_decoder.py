"""The sizes of a model, counted from its configuration alone, are those of the model itself."""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.analysis.memory import _FAMILIES, UnknownShape, shape_of
from tunefleet.spec import LoraSpec

SMALL = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("family", sorted(_FAMILIES))
def test_weights_are_counted_as_the_model_has_them(family: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    for more in ({}, {"attention_bias": True}, {"tie_word_embeddings": False}, {"head_dim": 32}):
        config = transformers.AutoConfig.for_model(family, **SMALL, **more)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        head = model.get_output_embeddings()
        linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not head]
        found = shape_of(config.to_dict(), None)
        assert found.weights == found.trained == sum(weight.numel() for weight in model.parameters()), more
        assert found.linear_weights == sum(module.weight.numel() for module in linear), more
        adapted = shape_of(config.to_dict(), LoraSpec.model_validate({"r": 4, "target_modules": "all-linear"}))
        assert adapted.trained == sum(4 * (module.in_features + module.out_features) for module in linear), more


def test_what_is_not_known_is_said() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"model_type": "bert"}, "type bert"),
        ({**SMALL, "model_type": "llama", "vocab_size": None}, "no vocab_size"),
    ]
    for config, said in cases:
        with pytest.raises(UnknownShape, match=said):
            shape_of(config, None)
