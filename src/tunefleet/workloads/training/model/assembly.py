"""From a spec to a base model with, or about to get, its adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from peft import LoraConfig, PeftModel
from transformers import PreTrainedModel

from tunefleet.artifacts.archive import only_folder, unpacked_path
from tunefleet.errors import ModelError
from tunefleet.spec import CheckpointLoadSpec, ModelTrainingSpec, QuantizationSpec
from tunefleet.workloads.common import base_model, containment
from tunefleet.workloads.training.model import lora, weights_loader
from tunefleet.workloads.training.model.hardware import Kernels

# The key of a job's inputs under which weights from a task or an address lie.
FETCHED: Final = "checkpoint.load"


@dataclass(frozen=True, slots=True)
class Base:
    """Where a training starts."""

    source: base_model.Source
    adapter_folder: str | None = None


def locate_base(spec: ModelTrainingSpec, inputs: Mapping[str, str], workspace: Path) -> Base:
    """Find the model of a spec and the weights to start from."""
    source = base_model.named(spec.model.source, inputs, workspace, trust_remote_code=spec.model.trust_remote_code)
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
    """Load the weights and say which adapter is to be put on them."""
    dtype = spec.model.transformers.dtype
    loaded = weights_loader.load_model(
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
    """Load a second copy of the model, which is not trained; None where the adapter is turned off for that."""
    if spec.adapter is not None:
        return None
    dtype = spec.model.transformers.dtype
    weights = None if dtype == "auto" else dtype
    return weights_loader.load_model(base.source, kernels, weights=weights, frozen=True, spread=spread)


def _quantization(wanted: QuantizationSpec | None) -> weights_loader.Quantization | None:
    if wanted is None:
        return None
    return weights_loader.Quantization(
        bits=4 if wanted.load_in_4bit else 8,
        quant_type=wanted.quant_type,
        double_quant=wanted.double_quant,
        compute_dtype=None if wanted.compute_dtype == "auto" else wanted.compute_dtype,
    )


def _checkpoint_folder(load: CheckpointLoadSpec, pointer: str, inputs: Mapping[str, str], workspace: Path) -> Path:
    path = _checkpoint_place(load, pointer, inputs)
    folder = path if load.archive_format == "none" else unpacked_path(path, workspace)
    folder = folder / load.subdir if load.subdir is not None else only_folder(folder)
    if not folder.is_dir():
        raise ModelError(f"The checkpoint {path} has no folder {load.subdir or folder.name}.")
    return folder


def _checkpoint_place(load: CheckpointLoadSpec, pointer: str, inputs: Mapping[str, str]) -> Path:
    """Return what has travelled or was found, else what was fetched, else the folder as it is named."""
    for name in (pointer, FETCHED):
        if name in inputs:
            return Path(inputs[name])
    if load.place is None:
        named = f"the task {load.task}" if load.task is not None else load.url
        raise ModelError(f"The weights of {named}, which `checkpoint.load` names, were not fetched.")
    return Path(load.place).expanduser()
