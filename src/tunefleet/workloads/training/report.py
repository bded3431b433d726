"""Keys common to all training results: the orchestrator's contract, effective settings, throughput."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
import trl

from tunefleet.schemas.job_folder import Job
from tunefleet.spec import ModelTrainingSpec
from tunefleet.workloads.training.exact_trainer import ExactTrainer
from tunefleet.workloads.training.model.hardware import Hardware, Kernels


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished training run."""

    trainer: ExactTrainer
    hardware: Hardware
    kernels: Kernels
    resumed_from: str | None
    delivered: dict[str, Any]
    seconds: dict[str, float]


def contract_keys(job: Job, spec: ModelTrainingSpec, run: FinishedRun, rows: int | None) -> dict[str, Any]:
    """Return the keys of the orchestrator's contract, with steps and epochs.

    Args:
        rows: Number of rows trained on; None if they were not counted.
    """
    args, state = run.trainer.args, run.trainer.state
    return {
        "task_id": job.task_id,
        "training_successful": True,
        "training_time_seconds": run.seconds.get("training_s", 0.0),
        "error_message": None,
        "model_name": spec.model.source.identifier,
        "dataset_size": rows,
        "output_dir": str(Path(args.output_dir).parent),
        "checkpoints_dir": str(args.output_dir),
        "resume_from_path": run.resumed_from,
        **run.delivered,
        "steps": state.global_step,
        "epochs": state.epoch,
    }


def effective_settings(spec: ModelTrainingSpec, run: FinishedRun) -> dict[str, Any]:
    """Return the settings that were in effect, read from the objects and not from the spec."""
    trainer, hardware, kernels = run.trainer, run.hardware, run.kernels
    model, args = trainer.model, trainer.args
    optimizer: Any = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    parameters = list(model.parameters())
    return {
        "device": hardware.device,
        "device_name": hardware.name or None,
        "compute_dtype": kernels.compute,
        "weights_dtype": str(model.get_input_embeddings().weight.dtype).removeprefix("torch."),
        "attention": model.config._attn_implementation,
        "optimizer": type(optimizer).__name__,
        "optimizer_fused": bool(optimizer.defaults.get("fused")),
        "lr_scheduler": str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)),
        "liger": kernels.liger,
        "gradient_checkpointing": args.gradient_checkpointing,
        "quantization": None if spec.quantized is None else spec.quantized.model_dump(mode="json"),
        "batch_size": args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "processes": args.world_size,
        "parallelism": _parallelism(spec, args.world_size),
        "parameters": sum(parameter.numel() for parameter in parameters),
        "parameters_trained": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        "seed": args.seed,
        "torch_threads": torch.get_num_threads(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "trl": trl.__version__},
    }


def _parallelism(spec: ModelTrainingSpec, processes: int) -> str | None:
    strategy = spec.training.strategy(processes)
    return strategy if processes > 1 or strategy == "device_map" else None


def throughput(run: FinishedRun) -> dict[str, float]:
    """Return the rates of this launch only."""
    # Steps and tokens count all launches, the measured time only this one: earlier steps are subtracted.
    state, training_s = run.trainer.state, run.seconds.get("training_s", 0.0)
    first = int(run.resumed_from.rsplit("-", 1)[-1]) if run.resumed_from else 0
    steps = state.global_step - first
    if steps <= 0 or training_s <= 0:
        return {}
    tokens = state.num_input_tokens_seen * steps / state.global_step
    return {
        "steps_per_s": steps / training_s,
        "step_time_s": training_s / steps,
        "tokens_per_s": tokens / training_s,
    }
