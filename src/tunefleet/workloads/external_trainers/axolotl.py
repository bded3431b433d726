"""Axolotl: its YAML, run by `axolotl train` in the environment `axolotl`."""

from __future__ import annotations

from typing import Any, Final

import yaml

from tunefleet.workloads.external_trainers.trainers import Plan, Request, training_arguments

CONFIG: Final = "axolotl.yaml"
# Axolotl's names for arguments of `TrainingArguments`.
_NAMES: Final = {
    "num_train_epochs": "num_epochs",
    "per_device_train_batch_size": "micro_batch_size",
    "per_device_eval_batch_size": "eval_batch_size",
    "lr_scheduler_type": "lr_scheduler",
    "optim": "optimizer",
}


def plan(request: Request) -> Plan:
    """Translate a training task for Axolotl."""
    command = ["axolotl", "train", CONFIG]
    if request.gpus > 1:
        command += ["--launcher", "torchrun", "--", f"--nproc-per-node={request.gpus}"]
    else:
        command += ["--launcher", "python"]
    text = yaml.safe_dump(config(request), sort_keys=False)
    return Plan(tuple(command), {CONFIG: text}, {"AXOLOTL_DO_NOT_TRACK": "1"}, "axolotl")


def config(request: Request) -> dict[str, Any]:
    """Return Axolotl's configuration."""
    training = request.spec.training
    found: dict[str, Any] = {
        "base_model": request.model,
        "revision_of_model": request.revision,
        "trust_remote_code": request.spec.model.trust_remote_code or None,
        "attn_implementation": request.attention,
        # Rows are already tokenized and have labels, so the dataset has no `type`.
        "datasets": [{"path": str(request.train), "ds_type": "json"}],
        "test_datasets": [{"path": str(request.held_out), "ds_type": "json", "split": "train"}]
        if request.held_out is not None
        else None,
        "val_set_size": 0,
        "dataset_prepared_path": "prepared",
        "sequence_len": training.max_seq_length,
        "sample_packing": training.packing,
        "eval_sample_packing": False,
        "pad_to_sequence_len": training.packing,
        "special_tokens": {"pad_token": request.pad_token},
        "output_dir": "output",
        "gradient_checkpointing": training.gradient_checkpointing,
        **{_NAMES.get(name, name): value for name, value in training_arguments(request).items()},
        **_adapter(request),
    }
    return {name: value for name, value in found.items() if value is not None}


def _adapter(request: Request) -> dict[str, Any]:
    lora, quantized = request.lora, request.quantized
    if lora is None:
        return {}
    everything = lora.target_modules == "all-linear"
    four = quantized is not None and quantized.load_in_4bit
    return {
        "adapter": "qlora" if four else "lora",
        "load_in_4bit": four,
        "load_in_8bit": quantized is not None and quantized.load_in_8bit,
        "lora_model_dir": request.start,
        "lora_r": lora.r,
        "lora_alpha": int(lora.alpha) if float(lora.alpha).is_integer() else lora.alpha,
        "lora_dropout": lora.dropout,
        "lora_target_linear": True if everything else None,
        "lora_target_modules": None if everything else list(lora.target_modules),
        "lora_modules_to_save": list(lora.modules_to_save) or None,
        "peft_use_rslora": lora.use_rslora or None,
        "peft_use_dora": lora.use_dora or None,
    }
