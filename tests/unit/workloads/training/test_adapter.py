"""In which type an adapter is trained, and what becomes of one that a library has rounded."""

from __future__ import annotations

import copy
from typing import Any

import pytest


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global LlamaConfig, LlamaForSequenceClassification, LoraConfig, TaskType, adapter, get_peft_model, torch
    pytest.importorskip("peft")

    import torch
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import LlamaConfig, LlamaForSequenceClassification

    from tunefleet.workloads.training.model import lora as adapter


# PEFT asks Transformers by a name that will go.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.fixture
def adapted() -> Any:
    """A tiny classifier in bfloat16 with an adapter and a head that is trained whole."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    base = LlamaForSequenceClassification(LlamaConfig(vocab_size=16, num_labels=1, **sizes)).to(torch.bfloat16)
    return get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"], task_type=TaskType.SEQ_CLS))


def rounded(model: Any) -> None:
    """What TRL does to an adapter on a quantised base."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)


def types(model: Any) -> dict[str, torch.dtype]:
    return {name: each.dtype for name, each in model.named_parameters() if each.requires_grad}


def test_what_is_trained_of_an_adapter_is_held_in_float32_and_the_base_stays_as_it_is(adapted: Any) -> None:
    rounded(adapted)
    adapter.train_in_float32(adapted, {}, autocast=True)
    assert len(types(adapted)) == 3, "two of the adapter, and the head"
    assert set(types(adapted).values()) == {torch.float32}
    assert adapted.get_input_embeddings().weight.dtype == torch.bfloat16


def test_a_module_that_nothing_casts_inputs_for_keeps_the_type_of_the_base(adapted: Any) -> None:
    adapter.train_in_float32(adapted, {}, autocast=False)
    heads = {name: dtype for name, dtype in types(adapted).items() if "lora_" not in name}
    assert list(heads.values()) == [torch.bfloat16]
    adapted(input_ids=torch.tensor([[1, 2]]))


def test_an_adapter_that_was_there_is_not_rounded_and_neither_is_the_reference(adapted: Any) -> None:
    before = adapter.trainable_weights(adapted)
    start = {name: tensor.clone() for name, tensor in before.items()}
    adapted.add_adapter(adapter.REFERENCE, copy.copy(adapted.peft_config["default"]))
    for parameter in (each for name, each in adapted.named_parameters() if ".default." in name or ".ref." in name):
        parameter.data = parameter.data.to(torch.bfloat16)
    adapter.train_in_float32(adapted, before, autocast=True)
    found = dict(adapted.named_parameters())
    lora = [name for name in start if "lora_" in name]
    assert lora
    for name in lora:
        other = name.replace(".default.", ".ref.")
        assert torch.equal(found[name], start[name])
        assert torch.equal(found[other], start[name])
        found[name].data.add_(1.0)
        assert torch.equal(found[other], start[name]), "it does not follow the training"


def test_a_model_that_is_trained_whole_is_left_as_it_is() -> None:
    model = torch.nn.Linear(2, 2).to(torch.bfloat16)
    adapter.train_in_float32(model, adapter.trainable_weights(model), autocast=True)
    assert model.weight.dtype == torch.bfloat16
