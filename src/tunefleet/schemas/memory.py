"""How much memory a training of a document would take; part of the HTTP API under `/api/v1`."""

from __future__ import annotations

from typing import Literal

from tunefleet.schemas.base import Message


class MemoryVariant(Message):
    """What a training takes at the peak of a step, as it is written or trained otherwise.

    Args:
        name: `whole` trains all weights; `adapter`, `adapter_8bit` and `adapter_4bit` train a LoRA adapter on a base
            model that is loaded as it is, or in fewer bits.
        as_written: Whether the document says it so.
        total_bytes: The sum of the parts.
        weights_bytes: The model, and the adapter.
        gradients_bytes: Of what is trained.
        activations_bytes: What is kept for the way back.
        logits_bytes: Of one batch, with their gradient.
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
    """How much memory a training would take.

    Args:
        variants: As written, and otherwise; none if it cannot be told.
        unknown: Why it cannot be told, in a sentence.
        compute: The type of the arithmetic that the figures are for.
        trained: Weights that are trained, as written.
        worker_id: The worker whose memory it is held against; null if none would take it.
        device: Whether that memory is a GPU's.
        available_bytes: How large it is.
    """

    variants: tuple[MemoryVariant, ...] = ()
    unknown: str | None = None
    compute: str | None = None
    trained: int | None = None
    weights: int | None = None
    worker_id: str | None = None
    device: Literal["gpu", "cpu"] | None = None
    available_bytes: int | None = None
