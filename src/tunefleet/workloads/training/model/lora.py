"""LoRA configuration, checked against the base model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import torch
from peft import LoraConfig, PeftModel, TaskType
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tunefleet.errors import ModelError
from tunefleet.spec import LoraSpec
from tunefleet.workloads.common.base_model import require_same_vocabulary

ALL_LINEAR: Literal["all-linear"] = "all-linear"
# TRL's name for the frozen copy of an adapter that serves as the reference model.
REFERENCE: Final = "ref"
# Keys of `lora`, and PEFT's names for them.
_SAME: Final = {
    "r": "r",
    "alpha": "lora_alpha",
    "dropout": "lora_dropout",
    "bias": "bias",
    "use_rslora": "use_rslora",
    "use_dora": "use_dora",
    "target_modules": "target_modules",
    "modules_to_save": "modules_to_save",
}


def lora_config(model: PreTrainedModel, lora: LoraSpec, *, scores: bool = False) -> LoraConfig:
    """Build the configuration of a new adapter."""
    _check_targets(model, lora.target_modules)
    _check_exist(model, lora.modules_to_save)
    return LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        bias=lora.bias,
        target_modules=ALL_LINEAR if lora.target_modules == ALL_LINEAR else list(lora.target_modules),
        task_type=TaskType.SEQ_CLS if scores else TaskType.CAUSAL_LM,
        use_rslora=lora.use_rslora,
        use_dora=lora.use_dora,
        modules_to_save=list(lora.modules_to_save) or None,
    )


def require_same(model: PreTrainedModel, lora: LoraSpec, folder: str) -> None:
    """Refuse keys of `lora` that contradict the loaded adapter."""
    try:
        config = LoraConfig.from_pretrained(folder)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"The adapter in {Path(folder).name} has no readable config: {error}") from error
    for name, key in _SAME.items():
        wanted, found = getattr(lora, name), getattr(config, key)
        if name == "target_modules":
            # PEFT saves either short names or full module paths.
            wanted = set(candidates(model)) if wanted == ALL_LINEAR else {each.rsplit(".", 1)[-1] for each in wanted}
            found = {each.rsplit(".", 1)[-1] for each in found} if isinstance(found, list | set | tuple) else found
        elif name == "modules_to_save":
            wanted, found = set(wanted), set(found or ())
        if name in lora.model_fields_set and wanted != found:
            raise ModelError(
                f"`lora.{name}` is {_formatted(wanted)}, but the loaded adapter has {_formatted(found)}: a loaded "
                "adapter keeps its shape and scale.",
                hint=f"Remove `lora.{name}`, or start a new adapter without the loaded one.",
            )


def _formatted(value: object) -> str:
    return ", ".join(sorted(map(str, value))) or "none" if isinstance(value, set) else str(value)


def continue_adapter(model: PreTrainedModel, folder: str) -> PeftModel:
    """Load an existing adapter onto the model to continue its training."""
    rows = model.get_input_embeddings().weight.shape[0]
    require_same_vocabulary(Path(folder), rows, f"in {Path(folder).name}")
    try:
        return PeftModel.from_pretrained(model, folder, is_trainable=True)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelError(
            f"The adapter in {folder} cannot be loaded onto this model: {str(error).splitlines()[0]}",
            hint="It must have been trained on the same base model.",
            detail=str(error),
        ) from error


def trainable_weights(model: object) -> dict[str, torch.Tensor]:
    """Return the trainable weights of an existing adapter, before a library casts them."""
    if not isinstance(model, PeftModel):
        return {}
    return {name: parameter.data for name, parameter in model.named_parameters() if parameter.requires_grad}


def train_in_float32(model: object, before: Mapping[str, torch.Tensor], *, autocast: bool) -> None:
    """Keep the trainable weights of an adapter in float32: in bfloat16 most updates are rounded away."""
    if not isinstance(model, PeftModel):
        return
    # TRL casts adapters on a quantized base to bfloat16, and PEFT keeps `modules_to_save` in the dtype of the base.
    # PEFT casts inputs for the adapter's own layers; for modules in `modules_to_save` only autocast does.
    castable = autocast or model.get_input_embeddings().weight.dtype == torch.float32
    for name, parameter in model.named_parameters():
        start = before.get(name.replace(f".{REFERENCE}.", ".default."))
        if start is not None and start.dtype != parameter.dtype:
            parameter.data = start.to(parameter.device, copy=True)
        short = parameter.is_floating_point() and parameter.element_size() < torch.float32.itemsize
        if parameter.requires_grad and short and ("lora_" in name or castable):
            parameter.data = parameter.data.float()


def candidates(model: PreTrainedModel) -> list[str]:
    """Return the short names of modules that can get an adapter, without the output head."""
    head = model.get_output_embeddings()
    return sorted(
        {
            name.rsplit(".", 1)[-1]
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear | Conv1D) and module is not head
        }
    )


def _check_targets(model: PreTrainedModel, targets: Sequence[str] | Literal["all-linear"]) -> None:
    if targets == ALL_LINEAR:
        return
    hint = f"This model has: {', '.join(candidates(model))}; or write {ALL_LINEAR}."
    names = [name for name, _ in model.named_modules()]
    head = model.get_output_embeddings()
    for target in targets:
        # The same matching rule as in PEFT.
        matched = [name for name in names if name == target or name.endswith(f".{target}")]
        if not matched:
            raise ModelError(
                f"`lora.target_modules` names {target!r}, which no module of the model matches.", hint=hint
            )
        if any(model.get_submodule(name) is head for name in matched):
            raise ModelError(
                f"`lora.target_modules` names the output head ({target!r}), whose adapter would never be trained.",
                hint=f"Remove it, or name it in `lora.modules_to_save`. {hint}",
            )


def _check_exist(model: PreTrainedModel, names: Sequence[str]) -> None:
    ends = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
    for name in names:
        if name.rsplit(".", 1)[-1] not in ends:
            raise ModelError(
                f"`lora.modules_to_save` names {name!r}, which the model does not have.",
                hint=f"It has, among others: {', '.join(sorted(ends - {''})[:40])}.",
            )
