"""Memory estimates of training tasks; part of the HTTP API under `/api/v1`."""

from __future__ import annotations

from typing import Literal

from tunefleet.schemas.base import Message


class MemoryVariant(Message):
    """Estimated peak memory of a training step, as written or for an alternative.

    Args:
        name: `whole` is a full fine-tune; `adapter`, `adapter_8bit` and `adapter_4bit` train a LoRA adapter on a base
            model that is not quantized, or quantized to 8 or 4 bits.
        as_written: Whether this is the variant in the workflow file.
        total_bytes: The sum of the parts.
        weights_bytes: Weights of model and adapter.
        gradients_bytes: Gradients of the trained weights.
        activations_bytes: Activations kept for the backward pass.
        logits_bytes: Logits of one batch and their gradient.
    """

    name: Literal["whole", "adapter", "adapter_8bit", "adapter_4bit"]
    as_written: bool
    total_bytes: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    logits_bytes: int


class MemoryForecast(Message):
    """Memory estimate of a training task.

    Args:
        variants: The written variant and alternatives; empty if no estimate is possible.
        unknown: Why no estimate is possible, in one sentence.
        compute: Data type of the computation.
        trained: Number of trained weights in the written variant.
        worker_id: The worker whose memory it is compared with; null if none is eligible.
        device: Whether that is GPU or CPU memory.
        available_bytes: Size of that memory.
    """

    variants: tuple[MemoryVariant, ...] = ()
    unknown: str | None = None
    compute: str | None = None
    trained: int | None = None
    weights: int | None = None
    worker_id: str | None = None
    device: Literal["gpu", "cpu"] | None = None
    available_bytes: int | None = None
