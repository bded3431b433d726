"""The interface of trainers (plugins use `Request` and `Plan` only), the available ones, and shared arguments."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, Literal

from tunefleet.errors import InputError
from tunefleet.spec import LoraSpec, TrainingTaskSpec
from tunefleet.spec.options.model import QuantizationSpec
from tunefleet.spec.options.trainer import OURS, is_function

# The linear layers of common decoders, for trainers without `all-linear`.
SEVEN_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
GROUP: Final = "tunefleet.trainers"
_BUILT_IN: Final = {
    name: f"tunefleet.workloads.external_trainers.{name}:plan" for name in ("axolotl", "llamafactory", "unsloth")
}


@dataclass(frozen=True, slots=True)
class Request:
    """A training task for a third-party trainer.

    Args:
        spec: The spec of the task, with the batch size of a retry after running out of memory.
        start: An adapter to continue; None for a new one.
        train: JSONL file of rows: `input_ids`, `attention_mask`, `labels` (-100 is masked in the loss).
    """

    spec: TrainingTaskSpec
    model: str
    revision: str | None
    start: str | None
    train: Path
    held_out: Path | None
    tokenized: Path
    pad_token: str
    work: Path
    gpus: int = 0
    compute: Literal["float32", "bfloat16", "float16"] = "float32"
    attention: str | None = None

    @property
    def lora(self) -> LoraSpec | None:
        """The adapter to train; None for full fine-tuning."""
        return self.spec.adapter

    @property
    def quantized(self) -> QuantizationSpec | None:
        """The quantization of the frozen weights."""
        return self.spec.quantized


@dataclass(frozen=True, slots=True)
class Plan:
    """The command of a trainer, with its files and environment.

    Args:
        files: Path below `Request.work` → text; written before the command runs.
        environment: An environment of `tunefleet env`; None for the one that Tunefleet runs in.
    """

    command: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    environment: str | None = None
    output: str = "output"


# A trainer. It may raise `InputError` for options that it does not support.
Trainer = Callable[[Request], Plan]


def training_arguments(request: Request) -> dict[str, Any]:
    """Return values for `transformers.TrainingArguments` from the spec; None values are left out."""
    training = request.spec.training
    evaluates = request.held_out is not None and training.eval_strategy != "no"
    found = {
        "num_train_epochs": training.num_train_epochs,
        "max_steps": training.max_steps,
        "per_device_train_batch_size": training.batch_size,
        "per_device_eval_batch_size": training.eval_batch_size or max(8, training.batch_size),
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": training.lr_scheduler_type,
        "warmup_steps": training.warmup_steps or None,
        "warmup_ratio": training.warmup_ratio or None,
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.max_grad_norm,
        "optim": training.optim or ("adamw_torch_fused" if request.gpus else "adamw_torch"),
        "seed": training.seed,
        "bf16": request.compute == "bfloat16",
        "fp16": request.compute == "float16",
        "logging_steps": training.logging_steps,
        "save_strategy": training.save_strategy,
        "save_steps": training.save_steps if training.save_strategy == "steps" else None,
        "save_total_limit": training.save_total_limit,
        "eval_strategy": training.eval_strategy if evaluates else "no",
        "eval_steps": training.evaluation_steps if evaluates and training.eval_strategy == "steps" else None,
        "neftune_noise_alpha": training.neftune_noise_alpha,
    }
    return {name: value for name, value in found.items() if value is not None}


def find_trainer(name: str, points: Iterable[EntryPoint] | None = None) -> Trainer:
    """Return a trainer."""
    if is_function(name):
        return _load(name, name)
    # Built-in names first: a plugin must not replace one.
    if name in _BUILT_IN:
        return _load(name, _BUILT_IN[name])
    installed = trainer_plugins(points)
    if name not in installed:
        known = ", ".join([OURS, *_BUILT_IN, *sorted(installed)])
        raise InputError(
            f"There is no trainer {name!r} on this worker.", hint=f"Available: {known}; or name module:function."
        )
    return _load(name, installed[name])


def trainer_plugins(points: Iterable[EntryPoint] | None = None) -> dict[str, str]:
    """Return the trainers of installed packages: name → `module:function`. Does not import them."""
    return {point.name: point.value for point in (entry_points(group=GROUP) if points is None else points)}


def _load(name: str, value: str) -> Trainer:
    module, _, attribute = value.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"Trainer {name} cannot be loaded: {error}.",
            hint="The module must be installed on the worker or be on its PYTHONPATH.",
        ) from error
    if not callable(found):
        raise InputError(f"Trainer {name} is not a function.", hint="Name a function from Request to Plan.")
    trainer: Trainer = found
    return trainer
