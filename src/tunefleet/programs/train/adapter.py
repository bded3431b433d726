"""The LoRA adapter: its configuration, checked against the model that it goes into."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from peft import LoraConfig, PeftModel, TaskType
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tunefleet.errors import ModelError

ALL_LINEAR = "all-linear"


def lora_config(
    model: PreTrainedModel,
    *,
    rank: int,
    alpha: float,
    dropout: float,
    bias: Literal["none", "all", "lora_only"],
    targets: Sequence[str] | str,
    rslora: bool = False,
    dora: bool = False,
    modules_to_save: Sequence[str] = (),
    base_name: str,
) -> LoraConfig:
    """Build the configuration of a new adapter.

    Args:
        model: The base.
        rank: Inner dimension.
        alpha: Scale; the update is multiplied by alpha / rank (rsLoRA: alpha / sqrt(rank)).
        dropout: On the adapter's input.
        bias: Which biases are trained along.
        targets: Ends of module names, one regular expression over whole names, or `all-linear`.
        rslora: Scale by the square root of the rank.
        dora: Train magnitudes apart from directions.
        modules_to_save: Modules that are trained as a whole and saved with the adapter.
        base_name: What the adapter's config names as its base.

    Raises:
        ModelError: If a target matches nothing, or the output head.
    """
    _check_targets(model, targets)
    _check_exist(model, modules_to_save)
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        bias=bias,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type=TaskType.CAUSAL_LM,
        use_rslora=rslora,
        use_dora=dora,
        modules_to_save=list(modules_to_save) or None,
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


def _check_targets(model: PreTrainedModel, targets: Sequence[str] | str) -> None:
    if targets == ALL_LINEAR:
        return
    hint = f"This model has: {', '.join(candidates(model))}; or write {ALL_LINEAR}."
    names = [name for name, _ in model.named_modules()]
    head = model.get_output_embeddings()
    for target in [targets] if isinstance(targets, str) else targets:
        matched = [name for name in names if _matches(name, target, whole=isinstance(targets, str))]
        if not matched:
            raise ModelError(f"`lora.target_modules` names {target!r}, which no module of the model matches.", hint=hint)
        if any(model.get_submodule(name) is head for name in matched):
            raise ModelError(
                f"`lora.target_modules` names the output head ({target!r}), whose adapter would never be trained.",
                hint=f"Leave it out, or name it in `lora.modules_to_save`. {hint}",
            )


def _matches(name: str, target: str, *, whole: bool) -> bool:
    """Match as PEFT does: a single text is a regular expression, an element of a list is the end of a name."""
    return re.fullmatch(target, name) is not None if whole else name == target or name.endswith(f".{target}")


def _check_exist(model: PreTrainedModel, names: Sequence[str]) -> None:
    ends = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
    for name in names:
        if name.rsplit(".", 1)[-1] not in ends:
            raise ModelError(
                f"`lora.modules_to_save` names {name!r}, which the model does not have.",
                hint=f"It has, among others: {', '.join(sorted(ends - {''})[:40])}.",
            )
