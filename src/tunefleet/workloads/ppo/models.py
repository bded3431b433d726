"""The value model: the base once more, with a head that says what reward is still to come."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, TaskType, inject_adapter_in_model
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils import logging

from tunefleet.errors import ModelError
from tunefleet.spec import LoraSpec
from tunefleet.workloads.common.base_model import Source, unloadable
from tunefleet.workloads.training.model.hardware import Kernels
from tunefleet.workloads.training.model.lora import ALL_LINEAR


def value_model(source: Source, kernels: Kernels, lora: LoraSpec | None) -> PreTrainedModel:
    """Load the value model; its head starts with zeros, so that it expects nothing before it has learnt.

    Raises:
        ModelError: If the architecture has no such head.
    """
    dtype = kernels.compute if lora is not None else "float32"
    asked: dict[str, Any] = {"revision": source.revision, "trust_remote_code": source.trust_remote_code}
    said = logging.get_verbosity()
    logging.set_verbosity_error()  # that the head is new is the point of it
    try:
        model: PreTrainedModel = AutoModelForSequenceClassification.from_pretrained(
            source.path, num_labels=1, dtype=getattr(torch, dtype), attn_implementation=kernels.attention, **asked
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise unloadable("value model", source, error) from error
    finally:
        logging.set_verbosity(said)
    head = getattr(model, "score", None)
    if head is None:
        raise ModelError(f"The architecture of {source.identifier} has no head for values, which PPO needs.")
    torch.nn.init.zeros_(head.weight)
    if lora is None:
        return model
    model.requires_grad_(False)
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        target_modules=ALL_LINEAR if lora.target_modules == ALL_LINEAR else list(lora.target_modules),
        task_type=TaskType.SEQ_CLS,
        use_rslora=lora.use_rslora,
    )
    inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        trained = "lora_" in name or name.startswith("score.")
        parameter.requires_grad_(trained)
        if trained:
            parameter.data = parameter.data.float()
    return model
