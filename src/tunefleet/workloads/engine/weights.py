"""Loads a model for inference, and its LoRA adapters: some merged into its weights, others selected by name."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel

from tunefleet.errors import MachineError, ModelError
from tunefleet.workloads.common.base_model import Source, loading_error, require_same_vocabulary
from tunefleet.workloads.engine.protocol import EngineAdapter
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
                hint="Request one with `resources.hardware.gpu`, or remove it.",
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


class Adapters:
    """The adapters of a model, and which one is active."""

    def __init__(self, model: PreTrainedModel, adapters: Sequence[EngineAdapter]) -> None:
        self.model = model
        self._active: str | None = None
        self._peft_model: Any = None
        for number, adapter in enumerate(each for each in adapters if each.merge):
            self.model = self._load(adapter, f"merged{number}").merge_and_unload(safe_merge=True)
            self._peft_model = None
            logger.info("The adapter %s is merged into the weights", adapter.name)
        # PEFT uses adapter names as module names, which may not contain every character.
        self._inner = {each.name: f"a{at}" for at, each in enumerate(each for each in adapters if not each.merge)}
        for adapter in adapters:
            if not adapter.merge:
                self._load(adapter, self._inner[adapter.name])
        if self._peft_model is not None:
            # PEFT has replaced layers inside the base model, which therefore runs with the active adapter.
            self.model = self._peft_model.get_base_model()
            self._peft_model.base_model.disable_adapter_layers()
            self.model.requires_grad_(requires_grad=False)
            self.model.eval()

    @property
    def names(self) -> list[str]:
        """The adapter names that requests may use."""
        return list(self._inner)

    def use(self, name: str | None) -> None:
        """Activate one adapter and deactivate the others.

        Args:
            name: One of `names`; None for the base model.
        """
        if name == self._active or self._peft_model is None:
            return
        if name is None:
            self._peft_model.base_model.disable_adapter_layers()
        else:
            if self._active is None:
                self._peft_model.base_model.enable_adapter_layers()
            self._peft_model.base_model.set_adapter(self._inner[name])
        self._active = name

    def _load(self, adapter: EngineAdapter, name: str) -> Any:
        require_same_vocabulary(Path(adapter.path), self.model.get_input_embeddings().weight.shape[0], adapter.name)
        try:
            if self._peft_model is None:
                self._peft_model = PeftModel.from_pretrained(self.model, adapter.path, adapter_name=name)
            else:
                self._peft_model.load_adapter(adapter.path, adapter_name=name)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise ModelError(
                f"Adapter {adapter.name} cannot be loaded onto this model: {(str(error).splitlines() or [''])[0]}",
                hint="It must be a LoRA adapter that was trained on the same base model.",
                detail=str(error),
            ) from error
        if adapter.scale != 1:
            for module in self._peft_model.modules():
                if isinstance(module, LoraLayer):
                    module.set_scale(name, adapter.scale)
        return self._peft_model
