"""Load the weights of a language model, quantised if asked; knows nothing of data or of training."""

from __future__ import annotations

from dataclasses import dataclass
from pickle import UnpicklingError
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BitsAndBytesConfig,
    PreTrainedModel,
)

from tunefleet.errors import MachineError
from tunefleet.workloads.common.base_model import Source, unloadable
from tunefleet.workloads.training.model.hardware import Kernels


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the frozen weights are compressed."""

    bits: Literal[4, 8]
    quant_type: str = "nf4"
    double_quant: bool = True
    compute_dtype: str | None = None


def load_model(
    source: Source,
    kernels: Kernels,
    *,
    weights: str | None = None,
    frozen: bool = False,
    quantization: Quantization | None = None,
    spread: bool = False,
    scores: bool = False,
) -> PreTrainedModel:
    """Load the weights.

    Args:
        weights: The type to hold them in; default: float32 if they are trained (bfloat16 would round small updates
            away), the type of the arithmetic if they are frozen.
    """
    dtype = weights or (kernels.compute if frozen else "float32")
    extra: dict[str, Any] = {}
    if quantization is not None:
        extra["quantization_config"] = _quantization_config(quantization, kernels)
    if spread:
        extra["device_map"] = "auto"
    kind = AutoModelForCausalLM
    if scores:
        kind, extra["num_labels"] = AutoModelForSequenceClassification, 1
    try:
        model: PreTrainedModel = kind.from_pretrained(
            source.path,
            revision=source.revision,
            trust_remote_code=source.trust_remote_code,
            dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            attn_implementation=kernels.attention,
            **extra,
        )
    except (OSError, ValueError, KeyError, ImportError, SafetensorError, UnpicklingError) as error:
        raise unloadable("model", source, error) from error
    if quantization is not None:
        _keep_trainable(model)
    return model


def _quantization_config(quantization: Quantization, kernels: Kernels) -> Any:
    try:
        import bitsandbytes  # noqa: F401 - asks CUDA questions as it is imported, so not before it is needed
    except ImportError:
        raise MachineError(
            "Quantised training needs the package bitsandbytes.", hint="pip install bitsandbytes on the worker."
        ) from None
    if quantization.bits == 8:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quantization.quant_type,
        bnb_4bit_use_double_quant=quantization.double_quant,
        bnb_4bit_compute_dtype=quantization.compute_dtype or kernels.compute,
    )


def _keep_trainable(model: PreTrainedModel) -> None:
    """Forbid bitsandbytes to repack 4-bit weights for inference on a CPU.

    It does so in the first evaluation, and the repacked kernel has no gradient: a training after it would be silently
    wrong.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
