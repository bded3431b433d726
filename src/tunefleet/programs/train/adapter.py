"""The LoRA adapter: its configuration, checked against the model that it goes into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from peft import LoraConfig, PeftModel, TaskType
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tunefleet.errors import ModelError
from tunefleet.spec import LoraSpec

ALL_LINEAR: Literal["all-linear"] = "all-linear"


def lora_config(model: PreTrainedModel, lora: LoraSpec, base_name: str) -> LoraConfig:
    """Build the configuration of a new adapter.

    Args:
        model: The base.
        lora: What the user wants.
        base_name: What the adapter's config names as its base.

    Raises:
        ModelError: If a target matches nothing, or the output head.
    """
    _check_targets(model, lora.target_modules)
    _check_exist(model, lora.modules_to_save)
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        bias=lora.bias,
        target_modules=ALL_LINEAR if lora.target_modules == ALL_LINEAR else list(lora.target_modules),
        task_type=TaskType.CAUSAL_LM,
        use_rslora=lora.use_rslora,
        use_dora=lora.use_dora,
        modules_to_save=list(lora.modules_to_save) or None,
    )
    config.base_model_name_or_path = base_name
    return config


def continue_adapter(model: PreTrainedModel, folder: str) -> PeftModel:
    """Put an existing adapter on the model, to be trained further.

    Raises:
        ModelError: If the folder holds no adapter for this model.
    """
    try:
        return PeftModel.from_pretrained(model, folder, is_trainable=True)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelError(
            f"The adapter in {folder} cannot be put on this model: {str(error).splitlines()[0]}",
            hint="It must have been trained on the same base model.",
            detail=str(error),
        ) from error


def candidates(model: PreTrainedModel) -> list[str]:
    """List the ends of module names that an adapter can go into, without the output head."""
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
        # As PEFT matches them.
        matched = [name for name in names if name == target or name.endswith(f".{target}")]
        if not matched:
            raise ModelError(
                f"`lora.target_modules` names {target!r}, which no module of the model matches.", hint=hint
            )
        if any(model.get_submodule(name) is head for name in matched):
            raise ModelError(
                f"`lora.target_modules` names the output head ({target!r}), whose adapter would never be trained.",
                hint=f"Leave it out, or name it in `lora.modules_to_save`. {hint}",
            )


def _check_exist(model: PreTrainedModel, names: Sequence[str]) -> None:
    ends = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
    for name in names:
        if name.rsplit(".", 1)[-1] not in ends:
            raise ModelError(
                f"`lora.modules_to_save` names {name!r}, which the model does not have.",
                hint=f"It has, among others: {', '.join(sorted(ends - {''})[:40])}.",
            )
