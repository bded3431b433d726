"""From a spec to a base model with, or about to get, its adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from peft import LoraConfig, PeftModel
from transformers import PreTrainedModel

from tunefleet.errors import ModelError
from tunefleet.programs import base_model
from tunefleet.programs.archives import opened
from tunefleet.programs.train import adapter, model
from tunefleet.programs.train.hardware import Kernels
from tunefleet.spec import CheckpointLoadSpec, LoraSftSpec, QuantizationSpec, TrainingTaskSpec

FETCHED: Final = "checkpoint.load"
"""The key of a job's inputs under which weights from a task or an address lie."""


@dataclass(frozen=True, slots=True)
class Base:
    """Where a training starts.

    Args:
        source: The model to load.
        adapter_folder: An adapter to go on with.
    """

    source: base_model.Source
    adapter_folder: str | None = None


def locate_base(spec: TrainingTaskSpec, inputs: Mapping[str, str], workspace: Path) -> Base:
    """Find the model of a spec and the weights to start from.

    Args:
        spec: Names the model, and perhaps a checkpoint to load.
        inputs: For each pointer into the spec, the local path that stands for it.
        workspace: Where archives may be unpacked.

    Raises:
        ModelError: If something named does not exist.
    """
    named = spec.model.source
    local = inputs.get("model.source.identifier")
    source = base_model.locate(
        named.identifier,
        None if local is None else str(opened(Path(local), workspace)),
        revision=named.revision,
        trust_remote_code=spec.model.trust_remote_code,
    )
    if spec.start is None:
        return Base(source)
    folder = _checkpoint_folder(spec.start, spec.start_pointer, inputs, workspace)
    if isinstance(spec, LoraSftSpec):
        return Base(source, str(folder))
    return Base(replace(source, path=str(folder), revision=None))


def load_base(
    spec: TrainingTaskSpec, base: Base, kernels: Kernels, *, spread: bool = False
) -> tuple[PreTrainedModel | PeftModel, LoraConfig | None]:
    """Load the weights and say which adapter is to be put on them.

    Args:
        spec: What the user wants.
        base: Where the weights lie.
        kernels: Attention and arithmetic.
        spread: Lay the layers on all devices of this process.

    Returns:
        The model; and the configuration of a new adapter, or `None` if all weights or a given adapter are trained.

    Raises:
        ModelError: If the model or adapter cannot be loaded, or a module that the spec names does not exist.
    """
    dtype = spec.model.transformers.dtype
    lora = isinstance(spec, LoraSftSpec)
    loaded = model.load_model(
        base.source,
        kernels,
        weights=None if dtype == "auto" else dtype,
        frozen=lora,
        quantization=_quantization(spec.quantized),
        spread=spread,
    )
    if not isinstance(spec, LoraSftSpec):
        return loaded, None
    if base.adapter_folder is not None:
        return adapter.continue_adapter(loaded, base.adapter_folder), None
    return loaded, adapter.lora_config(loaded, spec.lora, base.source.public_name)


def _quantization(wanted: QuantizationSpec | None) -> model.Quantization | None:
    if wanted is None:
        return None
    return model.Quantization(
        bits=4 if wanted.load_in_4bit else 8,
        quant_type=wanted.quant_type,
        double_quant=wanted.double_quant,
        compute_dtype=None if wanted.compute_dtype == "auto" else wanted.compute_dtype,
    )


def _checkpoint_folder(load: CheckpointLoadSpec, pointer: str, inputs: Mapping[str, str], workspace: Path) -> Path:
    path = _checkpoint_place(load, pointer, inputs)
    folder = path if load.archive_format == "none" else opened(path, workspace)
    if load.subdir is not None:
        folder = folder / load.subdir
    elif folder.is_dir() and [entry.is_dir() for entry in folder.iterdir()] == [True]:
        folder = next(folder.iterdir())
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
