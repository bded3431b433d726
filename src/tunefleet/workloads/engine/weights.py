"""Loads a model for inference: dtype, quantization, attention and devices."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel

from tunefleet.errors import MachineError
from tunefleet.workloads.common.base_model import Source, loading_error
from tunefleet.workloads.training.model.hardware import Hardware, choose, inspect

logger = logging.getLogger(__name__)


def load(source: Source, options: Mapping[str, Any]) -> PreTrainedModel:
    """Load the weights.

    Raises:
        ModelError: If the folder or the architecture cannot be loaded.
        MachineError: If this machine does not support an option.
    """
    hardware = inspect()
    flash = "flash_attention_2" if options.get("use_flash_attention_2") else None
    on_cpu = options.get("device_map") == "cpu" or hardware.device == "cpu"
    kernels = choose(Hardware("cpu") if on_cpu else hardware, attention=options.get("attn_implementation") or flash)
    dtype = options.get("dtype") or "auto"
    compute = kernels.compute if dtype == "auto" else dtype
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            source.path,
            revision=source.revision,
            trust_remote_code=source.trust_remote_code,
            dtype=getattr(torch, compute),
            attn_implementation=kernels.attention,
            **_devices(options, on_cpu=on_cpu),
            **_compression(options, compute),
        )
    except (OSError, ValueError, KeyError, ImportError, SafetensorError, UnpicklingError) as error:
        raise loading_error("model", source, error) from error
    if not on_cpu and hardware.device == "mps":
        model = model.to("mps")
    model.eval()
    model.requires_grad_(requires_grad=False)
    logger.info("%s is loaded in %s on %s", source.identifier, compute, model.device)
    return model


def _devices(options: Mapping[str, Any], *, on_cpu: bool) -> dict[str, Any]:
    asked = options.get("device_map") or "auto"
    if on_cpu:
        if asked == "cuda":
            raise MachineError(
                "The spec requests `device_map: cuda`, but this job has no GPU.",
                hint="Request one with `resources.hardware.gpu`, or leave it out.",
            )
        return {}
    if not torch.cuda.is_available():
        return {}
    if asked == "auto" and torch.cuda.device_count() == 1:
        # Not "auto", which silently offloads weights to main memory: the engine would be a hundred times slower.
        return {"device_map": {"": 0}}
    return {"device_map": {"": 0} if asked == "cuda" else asked}


def _compression(options: Mapping[str, Any], compute: str) -> dict[str, Any]:
    bits = 4 if options.get("load_in_4bit") else 8 if options.get("load_in_8bit") else None
    if bits is None:
        return {}
    try:
        import bitsandbytes  # noqa: F401 - importing it queries CUDA, so it is imported only when needed
    except ImportError:
        raise MachineError(
            "Quantized weights need the package bitsandbytes.", hint="pip install bitsandbytes on the worker."
        ) from None
    if bits == 8:
        return {"quantization_config": BitsAndBytesConfig(load_in_8bit=True)}
    four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute)
    return {"quantization_config": four}
