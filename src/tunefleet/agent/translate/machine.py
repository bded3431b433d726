"""What the agent's settings and its machine add to a config."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults and limits of one agent.

    Args:
        save_steps: Steps between checkpoints, where the config does not say.
        logging_steps: Steps between points, where the config does not say.
        mixed_precision: Whether bf16 or fp16 may be used.
        gpu: Whether there is a GPU.
        bf16: Whether the GPU has bfloat16.
        allow_code: Whether a model's own code may run.
    """

    save_steps: int = 500
    logging_steps: int = 10
    mixed_precision: bool = True
    gpu: bool = False
    bf16: bool = False
    allow_code: bool = False
