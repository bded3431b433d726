"""Arguments that all trainers based on Hugging Face's `Trainer` share."""

from __future__ import annotations

from typing import Any

from tunefleet.workloads.external_trainers.launch_plan import Request

# The linear layers of common decoders, for trainers without `all-linear`.
SEVEN_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def arguments(request: Request) -> dict[str, Any]:
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
