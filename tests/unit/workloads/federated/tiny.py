"""A model with an adapter that a test can look through."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}


def base(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, **SIZES)).to(dtype)
    return model


def adapted(dtype: torch.dtype = torch.float32, *, seed: int = 1, **lora: Any) -> Any:
    """Return a model with a fresh adapter."""
    model = base(dtype)
    torch.manual_seed(seed)
    given = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "task_type": TaskType.CAUSAL_LM, **lora}
    return get_peft_model(model, LoraConfig(**given))


def classifier() -> Any:
    """Return a model whose head is trained whole beside the adapter."""
    torch.manual_seed(0)
    model = LlamaForSequenceClassification(LlamaConfig(vocab_size=32, num_labels=2, pad_token_id=0, **SIZES))
    return get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], task_type=TaskType.SEQ_CLS))


def batch(seed: int = 0, rows: int = 4) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 32, (rows, 8), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids}


def train(model: Any, optimizer: Any, steps: int, *, seed: int = 0) -> list[float]:
    """Learn one batch by heart; returns the loss of each step."""
    losses = []
    model.train()
    for _ in range(steps):
        loss = model(**batch(seed)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def other_values(live: Any, seed: int = 7) -> dict[str, torch.Tensor]:
    """Return other values for an adapter, such as an average would be."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(tensor.shape, generator=generator) * 0.05 for name, tensor in live.tensors.items()}
