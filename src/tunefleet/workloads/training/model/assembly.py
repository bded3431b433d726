"""Loads the base model of a spec, with its adapter or the configuration of a new one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final, Literal

import torch
from peft import LoraConfig, PeftModel
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BitsAndBytesConfig,
    PreTrainedModel,
)

from tunefleet.artifacts.archive import only_folder, unpacked_path
from tunefleet.errors import MachineError, ModelError
from tunefleet.spec import CheckpointLoadSpec, ModelTrainingSpec, QuantizationSpec
from tunefleet.workloads.common import base_model, containment
from tunefleet.workloads.common.base_model import Source, loading_error
from tunefleet.workloads.training.model import lora
from tunefleet.workloads.training.model.hardware import Kernels

# The key in a job's inputs for weights that come from a task or a URL.
FETCHED: Final = "checkpoint.load"


@dataclass(frozen=True, slots=True)
class Base:
    """The weights a training run starts from."""

    source: base_model.Source
    adapter_folder: str | None = None


def locate_base(spec: ModelTrainingSpec, inputs: Mapping[str, str], workspace: Path) -> Base:
    """Find the model of a spec and the weights to start from."""
    source = base_model.locate_named(
        spec.model.source, inputs, workspace, trust_remote_code=spec.model.trust_remote_code
    )
    if spec.start is None:
        return Base(source)
    folder = _checkpoint_folder(spec.start, spec.start_pointer, inputs, workspace)
    if spec.adapter is not None:
        containment.check_adapter(folder)
        return Base(source, str(folder))
    containment.check_model(folder)
    return Base(replace(source, path=str(folder), revision=None))


def load_base(
    spec: ModelTrainingSpec, base: Base, kernels: Kernels, *, spread: bool = False, scores: bool = False
) -> tuple[PreTrainedModel | PeftModel, LoraConfig | None]:
    """Load the weights; also return the configuration of the adapter to add, if it is a new one."""
    dtype = spec.model.transformers.dtype
    loaded = load_model(
        base.source,
        kernels,
        weights=None if dtype == "auto" else dtype,
        frozen=spec.adapter is not None,
        quantization=_quantization(spec.quantized),
        spread=spread,
        scores=scores,
    )
    if spec.adapter is None:
        return loaded, None
    if base.adapter_folder is not None:
        lora.require_same(loaded, spec.adapter, base.adapter_folder)
        return lora.continue_adapter(loaded, base.adapter_folder), None
    return loaded, lora.lora_config(loaded, spec.adapter, scores=scores)


def load_reference(
    spec: ModelTrainingSpec, base: Base, kernels: Kernels, *, spread: bool = False
) -> PreTrainedModel | None:
    """Load the reference model; None with an adapter, which is disabled to get the reference."""
    if spec.adapter is not None:
        return None
    dtype = spec.model.transformers.dtype
    weights = None if dtype == "auto" else dtype
    return load_model(base.source, kernels, weights=weights, frozen=True, spread=spread)


def _quantization(wanted: QuantizationSpec | None) -> Quantization | None:
    if wanted is None:
        return None
    return Quantization(
        bits=4 if wanted.load_in_4bit else 8,
        quant_type=wanted.quant_type,
        double_quant=wanted.double_quant,
        compute_dtype=None if wanted.compute_dtype == "auto" else wanted.compute_dtype,
    )


def _checkpoint_folder(load: CheckpointLoadSpec, pointer: str, inputs: Mapping[str, str], workspace: Path) -> Path:
    path = _checkpoint_path(load, pointer, inputs)
    folder = path if load.archive_format == "none" else unpacked_path(path, workspace)
    folder = folder / load.subdir if load.subdir is not None else only_folder(folder)
    if not folder.is_dir():
        raise ModelError(f"Checkpoint {path} has no folder {load.subdir or folder.name}.")
    return folder


def _checkpoint_path(load: CheckpointLoadSpec, pointer: str, inputs: Mapping[str, str]) -> Path:
    """Return the path of the weights: uploaded or resolved, else fetched, else the folder named in the spec."""
    for name in (pointer, FETCHED):
        if name in inputs:
            return Path(inputs[name])
    if load.place is None:
        named = f"the task {load.task}" if load.task is not None else load.url
        raise ModelError(f"The weights of {named}, which `checkpoint.load` names, were not fetched.")
    return Path(load.place).expanduser()


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the frozen weights are quantized."""

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
        weights: Their dtype. Default: float32 if they are trained (bfloat16 would round small updates away), the
            compute dtype if they are frozen.
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
        raise loading_error("model", source, error) from error
    if quantization is not None:
        _keep_trainable(model)
    return model


def _quantization_config(quantization: Quantization, kernels: Kernels) -> Any:
    try:
        import bitsandbytes  # noqa: F401 - importing it queries CUDA, so it is imported only when needed
    except ImportError:
        raise MachineError(
            "Quantized training needs the package bitsandbytes.", hint="pip install bitsandbytes on the worker."
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
    """Stop bitsandbytes from repacking 4-bit weights for inference on a CPU."""
    # It repacks them in the first evaluation, and the repacked kernel has no gradient: training would silently be
    # wrong from then on.
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
