"""`responses.json`: what a run did, what it really used, and how well it went."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
import trl

from tunefleet.programs.train.hardware import Hardware, Kernels
from tunefleet.programs.train.material import Material
from tunefleet.programs.train.samples import Answer
from tunefleet.programs.train.trainer import Trainer
from tunefleet.spec import TrainingTaskSpec
from tunefleet.wire.jobfolder import Job


class Clock:
    """Adds up how long the parts of a launch take."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._parts: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure what runs inside."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._parts[name] = self._parts.get(name, 0.0) + time.monotonic() - started

    def seconds(self) -> dict[str, float]:
        """Return the parts and the total so far, in seconds."""
        total = time.monotonic() - self._started
        return {f"{name}_s": round(value, 3) for name, value in [*self._parts.items(), ("total", total)]}


@dataclass(frozen=True, slots=True)
class Measured:
    """The model at one moment: held-out loss in nats per token, and answers to held-out prompts."""

    loss: float | None
    answers: list[Answer]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that has come to its end.

    Args:
        trainer: As the training left it.
        material: What it was trained on.
        hardware: Where.
        kernels: With what.
        before: The model before the training.
        after: The model after it.
        resumed_from: The checkpoint that this launch started from.
        delivered: Keys of the result that say where the product lies.
        seconds: How long the parts of this launch took.
    """

    trainer: Trainer
    material: Material
    hardware: Hardware
    kernels: Kernels
    before: Measured
    after: Measured
    resumed_from: str | None
    delivered: dict[str, Any]
    seconds: dict[str, float]


def build(job: Job, spec: TrainingTaskSpec, outcome: Outcome) -> dict[str, Any]:
    """Put the result together; the first keys are those of the orchestrator's contract."""
    trainer, material = outcome.trainer, outcome.material
    state = trainer.state
    return {
        "task_id": job.task_id,
        "training_successful": True,
        "training_time_seconds": outcome.seconds.get("training_s", 0.0),
        "error_message": None,
        "model_name": spec.model.source.identifier,
        "dataset_size": material.train.rows if material.train else None,
        "output_dir": str(Path(trainer.args.output_dir).parent),
        "checkpoints_dir": str(trainer.args.output_dir),
        "resume_from_path": outcome.resumed_from,
        **outcome.delivered,
        "steps": state.global_step,
        "epochs": state.epoch,
        "losses": _losses(outcome),
        "held_out": _held_out(outcome),
        "tokens": {
            "seen": int(state.num_input_tokens_seen),
            "dataset": material.train.tokens if material.train else None,
            "dataset_trained": material.train.trained_tokens if material.train else None,
        },
        "throughput": _throughput(outcome),
        "data": _data(material),
        "used": used(spec, outcome),
        "timings": outcome.seconds,
    }


def used(spec: TrainingTaskSpec, outcome: Outcome) -> dict[str, Any]:
    """Say what was really used, as the objects tell it and not as the spec wished it."""
    trainer, hardware, kernels = outcome.trainer, outcome.hardware, outcome.kernels
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
        "packing": args.packing,
        "padding_free": args.padding_free,
        "gradient_checkpointing": args.gradient_checkpointing,
        "quantization": None if spec.quantized is None else spec.quantized.model_dump(mode="json"),
        "batch_size": args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "processes": args.world_size,
        "parallelism": _parallelism(spec, args.world_size),
        "max_seq_length": outcome.material.max_length,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "parameters_trained": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        "seed": args.seed,
        "torch_threads": torch.get_num_threads(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "trl": trl.__version__},
    }


def _parallelism(spec: TrainingTaskSpec, processes: int) -> str | None:
    strategy = spec.training.strategy(processes)
    return strategy if processes > 1 or strategy == "device_map" else None


def _losses(outcome: Outcome) -> dict[str, float | None]:
    history = outcome.trainer.state.log_history
    logged = [entry["loss"] for entry in history if "loss" in entry]
    evaluated = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    if outcome.after.loss is not None:
        evaluated.append(outcome.after.loss)
    return {
        "train_first": logged[0] if logged else None,
        "train_last": logged[-1] if logged else None,
        "held_out_before": outcome.before.loss,
        "held_out_after": outcome.after.loss,
        "held_out_best": min(evaluated, default=None),
    }


def _held_out(outcome: Outcome) -> dict[str, Any] | None:
    held_out, before, after = outcome.material.held_out, outcome.before, outcome.after
    if held_out is None or before.loss is None or after.loss is None:
        return None
    return {
        "rows": held_out.rows,
        "tokens": held_out.trained_tokens,
        "unit": "nats per token",
        "loss_before": before.loss,
        "loss_after": after.loss,
        "fall": before.loss - after.loss,
        "answers": [
            {"prompt": late.prompt, "before": early.output, "after": late.output, "reference": late.reference}
            for early, late in zip(before.answers, after.answers, strict=True)
        ],
    }


def _throughput(outcome: Outcome) -> dict[str, float]:
    """Rates of this launch: what a launch before it did is not in its time."""
    state, training_s = outcome.trainer.state, outcome.seconds.get("training_s", 0.0)
    first = int(outcome.resumed_from.rsplit("-", 1)[-1]) if outcome.resumed_from else 0
    steps = state.global_step - first
    if steps <= 0 or training_s <= 0:
        return {}
    tokens = state.num_input_tokens_seen * steps / state.global_step
    return {
        "steps_per_s": steps / training_s,
        "step_time_s": training_s / steps,
        "tokens_per_s": tokens / training_s,
    }


def _data(material: Material) -> dict[str, Any]:
    train, packed = material.train, material.packed
    return {
        "dataset": material.origin,
        "shape": material.shape,
        "rows": train.rows if train else None,
        "dropped_rows": train.dropped if train else None,
        "truncated_rows": train.truncated if train else None,
        "streaming": material.stream is not None,
        "held_out_rows": material.held_out.rows if material.held_out else 0,
        "packed_sequences": packed.sequences if packed else None,
        "packed_filled": round(packed.filled, 4) if packed else None,
    }
