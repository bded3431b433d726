"""Translates a spec into `TrainingArguments`; makes no decision about the data or the model."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl import SFTConfig

from tunefleet.errors import MachineError
from tunefleet.spec import ModelTrainingSpec, Parallelism, TrainingTaskSpec
from tunefleet.workloads.training.model.hardware import Hardware, Kernels

if TYPE_CHECKING:
    from transformers import TrainerCallback


_SMALLEST_EVALUATION_BATCH = 8
_PROJECT = "tunefleet"
_BITSANDBYTES = {"adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit"}


@dataclass(frozen=True, slots=True)
class ArgumentsContext:
    """Everything besides the spec that training arguments depend on."""

    hardware: Hardware
    kernels: Kernels
    output_dir: Path
    run_name: str
    evaluation_batch: int | None = None
    parallelism: Parallelism = "ddp"
    deepspeed: Mapping[str, Any] | None = None


def common_arguments(spec: ModelTrainingSpec, setting: ArgumentsContext) -> dict[str, Any]:
    """Return the arguments common to every `TrainingArguments` class."""
    training, hardware, kernels = spec.training, setting.hardware, setting.kernels
    _check_installed(spec)
    if training.project_name is not None:
        name_project(training.project_name)
    if training.group is not None:
        name_group(training.group)
    evaluates = training.eval_strategy != "no"
    deepspeed, parallelism = setting.deepspeed, setting.parallelism
    return {
        "output_dir": str(setting.output_dir),
        "run_name": setting.run_name,
        "project": training.project_name or _PROJECT,
        "num_train_epochs": training.num_train_epochs,
        "max_steps": training.max_steps or -1,
        "per_device_train_batch_size": training.batch_size,
        "per_device_eval_batch_size": setting.evaluation_batch
        or training.eval_batch_size
        or max(training.batch_size, _SMALLEST_EVALUATION_BATCH),
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": training.lr_scheduler_type,
        # Transformers reads a number below one as a ratio of all steps.
        "warmup_steps": training.warmup_steps or training.warmup_ratio,
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.max_grad_norm,
        "optim": training.optim or "adamw_torch_fused",
        "seed": training.seed,
        "data_seed": training.seed,
        "bf16": kernels.compute == "bfloat16",
        "fp16": kernels.compute == "float16",
        "use_cpu": hardware.device == "cpu",
        "use_liger_kernel": kernels.liger,
        # The reentrant variant needs inputs with gradients, which a frozen base under an adapter does not have.
        "activation_checkpointing": training.gradient_checkpointing,
        "activation_checkpointing_kwargs": {"use_reentrant": False} if training.gradient_checkpointing else None,
        "dataloader_num_workers": training.dataloader_num_workers,
        "dataloader_pin_memory": hardware.device == "cuda",
        "logging_steps": training.logging_steps,
        # The filter replaces a NaN by the last finite loss, which would hide divergence.
        "logging_nan_inf_filter": False,
        "save_strategy": training.save_strategy,
        "save_steps": training.saving_steps,
        "save_total_limit": training.save_total_limit,
        "eval_strategy": training.eval_strategy,
        "eval_steps": training.evaluation_steps if training.eval_strategy == "steps" else None,
        "load_best_model_at_end": training.load_best_model_at_end,
        "metric_for_best_model": "eval_loss" if evaluates else None,
        "greater_is_better": False if evaluates else None,
        # TensorBoard gets a callback of its own, which writes into the job folder; see `tensorboard`.
        "report_to": [name for name in training.trackers if name != "tensorboard"],
        "disable_tqdm": True,
        "ddp_find_unused_parameters": training.ddp_find_unused_parameters,
        "deepspeed": None if deepspeed is None else dict(deepspeed),
        "fsdp": True if parallelism == "fsdp" else None,
        # Each rank writes its shard: the gathered state may not fit on one rank.
        "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"} if parallelism == "fsdp" else None,
    }


def _check_installed(spec: ModelTrainingSpec) -> None:
    needed: list[tuple[str, str]] = [(f"training.report_to: {name}", name) for name in spec.training.trackers]
    if spec.training.optim in _BITSANDBYTES:
        needed.append((f"training.optim: {spec.training.optim}", "bitsandbytes"))
    for option, package in needed:
        if importlib.util.find_spec(package) is None:
            raise MachineError(
                f"The spec requests `{option}`, but the package {package} is not installed.",
                hint=f"pip install {package} on the worker, or remove it.",
            )


def tensorboard(folder: Path) -> TrainerCallback:
    """Return a callback that writes TensorBoard event files into the job folder, next to the other results."""
    from torch.utils.tensorboard import SummaryWriter  # importable only if tensorboard is installed
    from transformers.integrations import TensorBoardCallback

    return TensorBoardCallback(SummaryWriter(log_dir=str(folder)))


def name_project(project: str) -> None:
    """Set the project of trackers that read it from the environment instead of the training arguments."""
    os.environ["WANDB_PROJECT"] = os.environ["MLFLOW_EXPERIMENT_NAME"] = project


def name_group(group: str) -> None:
    """Set the group of trackers, which they read from the environment."""
    os.environ["WANDB_RUN_GROUP"] = group
    os.environ["MLFLOW_TAGS"] = json.dumps({"group": group})


def supervised_arguments(spec: TrainingTaskSpec, setting: ArgumentsContext) -> SFTConfig:
    """Build the arguments of TRL's SFT trainer."""
    training, kernels = spec.training, setting.kernels
    return SFTConfig(
        **common_arguments(spec, setting),
        train_sampling_strategy="group_by_length" if training.group_by_length else "random",
        neftune_noise_alpha=training.neftune_noise_alpha,
        # Rows are already tokenized, truncated and packed; only the collator has to know about packing.
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        packing=training.packing,
        padding_free=training.packing or (kernels.varlen and training.batch_size > 1),
        include_num_input_tokens_seen="non_padding",
        # Saved in the config of the delivered model; training itself never uses the cache.
        use_cache=True,
        # A stream seeks to its position itself; the Trainer would read all batches before it again.
        ignore_data_skip=spec.data.streaming,
    )
