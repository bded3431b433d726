"""Converts a task's spec to a job's configuration, in all spellings that agents read (contracts B2 and B9). Pure."""

from __future__ import annotations

from typing import Any

from tunefleet.spec import LoraSftSpec, TrainingTaskSpec


def config_of(spec: TrainingTaskSpec) -> dict[str, Any]:
    """Return the configuration of a job for an agent that does not read our specs.

    Fields with two spellings are given in both. Fields that the protocol lacks are omitted; `spec` has them all.
    """
    config: dict[str, Any] = {
        "provider": "local",
        "model": _model(spec),
        "tokenizer": {"name": spec.model.source.identifier, "trust_remote_code": spec.model.trust_remote_code},
        "training": _training(spec),
        "data": _data(spec),
        "seed": spec.training.seed,
    }
    if isinstance(spec, LoraSftSpec):
        lora = _lora(spec)
        config["training"]["lora_config"] = {**lora, "lora_alpha": lora["alpha"], "lora_dropout": lora["dropout"]}
        config["lora"] = lora
    if spec.predictions is not None:
        known = spec.predictions.model_dump(mode="json")
        names = ("enabled", "sample_count", "sample_frequency")
        config["predictions"] = {name: known[name] for name in names if name in known}
    return {name: _without_null(part) for name, part in config.items()}


def dataset_path(spec: TrainingTaskSpec) -> str:
    """Return the location of the rows: a Hub id or a path; empty for rows inside the spec."""
    source = spec.data.source
    hub = source.kind == "hub" and not source.value.startswith((".", "/", "hf://"))
    return f"hf://{source.value}" if hub else source.value


def _model(spec: TrainingTaskSpec) -> dict[str, Any]:
    loading = spec.model.transformers
    quantized = spec.quantized
    return {
        "name": spec.model.source.identifier,
        "revision": spec.model.source.revision,
        "trust_remote_code": spec.model.trust_remote_code,
        "torch_dtype": loading.dtype,
        "device_map": loading.device_map,
        "quantization": None if quantized is None else ("4bit" if quantized.load_in_4bit else "8bit"),
    }


def _training(spec: TrainingTaskSpec) -> dict[str, Any]:
    block, quantized = spec.training, spec.quantized
    evaluates = block.eval_strategy if spec.data.eval is not None else "no"
    return {
        "method": "sft",
        "use_lora": isinstance(spec, LoraSftSpec),
        "num_epochs": block.num_train_epochs,
        "num_train_epochs": block.num_train_epochs,
        "max_steps": block.max_steps,
        "batch_size": block.batch_size,
        "per_device_train_batch_size": block.batch_size,
        "eval_batch_size": block.eval_batch_size,
        "per_device_eval_batch_size": block.eval_batch_size,
        "gradient_accumulation_steps": block.gradient_accumulation_steps,
        "learning_rate": block.learning_rate,
        "lr_scheduler_type": block.lr_scheduler_type,
        "warmup_steps": block.warmup_steps,
        "warmup_ratio": block.warmup_ratio or None,
        "weight_decay": block.weight_decay,
        "max_grad_norm": block.max_grad_norm,
        "optim": block.optim,
        "bf16": block.bf16,
        "fp16": block.fp16,
        "packing": block.packing,
        "gradient_checkpointing": block.gradient_checkpointing,
        "max_length": block.max_seq_length,
        "logging_steps": block.logging_steps,
        "save_strategy": block.save_strategy,
        "save_steps": block.save_steps,
        "save_total_limit": block.save_total_limit,
        "evaluation_strategy": evaluates,
        "eval_strategy": evaluates,
        "eval_steps": block.evaluation_steps if evaluates == "steps" else None,
        "dataloader_num_workers": block.dataloader_num_workers,
        "quantization": None
        if quantized is None
        else {
            "load_in_4bit": quantized.load_in_4bit,
            "load_in_8bit": quantized.load_in_8bit,
            "bnb_4bit_quant_type": quantized.quant_type,
            "bnb_4bit_use_double_quant": quantized.double_quant,
            "bnb_4bit_compute_dtype": quantized.compute_dtype,
        },
    }


def _data(spec: TrainingTaskSpec) -> dict[str, Any]:
    shape, eval_data = spec.data.shape, spec.data.eval
    named = {
        "text": {"text_field": shape.text},
        "pair": {"prompt_column": shape.prompt, "response_column": shape.response},
        "messages": {"messages_field": shape.messages},
        "auto": {"text_field": "text"},
    }
    return {
        "strategy": "standard",
        **named[shape.kind],
        "max_seq_length": spec.training.max_seq_length,
        "max_samples": spec.data.max_samples,
        "split": spec.data.split,
        "eval_split": None if eval_data is None else eval_data.fraction,
    }


def _lora(spec: LoraSftSpec) -> dict[str, Any]:
    block = spec.lora
    targets: Any = block.target_modules if block.target_modules == "all-linear" else list(block.target_modules)
    return {
        "r": block.r,
        "alpha": block.alpha,
        "dropout": block.dropout,
        "target_modules": targets,
        "bias": block.bias,
        "task_type": block.task_type,
    }


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_null(part) for name, part in value.items() if part is not None}
    return value
