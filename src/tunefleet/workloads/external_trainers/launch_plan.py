"""The interface of trainers: `Request` and `Plan`; plugins use nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tunefleet.spec import LoraSpec, TrainingTaskSpec
from tunefleet.spec.options.adapter import QuantizationSpec


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
