"""What a trainer is asked and what it answers; plugins see nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tunefleet.spec import LoraSpec, TrainingTaskSpec
from tunefleet.spec.options.adapter import QuantizationSpec


@dataclass(frozen=True, slots=True)
class Request:
    """A training that somebody else's code is to do.

    Args:
        spec: What the user wants, with the batch of a second try.
        start: An adapter to go on with; None for a new one.
        train: JSONL file of rows: `input_ids`, `attention_mask`, `labels` (-100 does not count).
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
        """The adapter that is trained; None if all weights are."""
        return self.spec.adapter

    @property
    def quantized(self) -> QuantizationSpec | None:
        """How the frozen weights are compressed."""
        return self.spec.quantized


@dataclass(frozen=True, slots=True)
class Plan:
    """How a trainer does it.

    Args:
        files: Name below `Request.work` → text; written before the command runs.
        environment: One of `tunefleet env`; None for the one that Tunefleet runs in.
    """

    command: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    environment: str | None = None
    output: str = "output"


# A trainer. May raise `InputError` for what it cannot do.
Trainer = Callable[[Request], Plan]
