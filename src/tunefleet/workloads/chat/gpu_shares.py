"""Two engines of vLLM on the same GPUs: which share of their memory each may take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tunefleet.workloads.engine.vllm_options import UTILIZATION

_BESIDE: Final = 1.2
"""Memory that an engine needs, by the size of its weights: the rest is for what it computes."""
_WEIGHTS: Final = ("*.safetensors", "pytorch_model*.bin")
"""Files of weights, the ones that are loaded first: a folder may have both, and an optimizer beside them."""


def share_of_two(weights: Sequence[int], memory: int | None, asked: float | None) -> float | None:
    """Return which share of the memory each of two engines gets; None if they do not fit beside each other.

    Args:
        weights: Sizes of the models, in bytes; 0 if one is not known.
        memory: Of all their GPUs, in bytes; None if the driver does not say.
        asked: The share that the spec gives.
    """
    share = min(asked or UTILIZATION, UTILIZATION / 2)
    fits = memory is None or max(weights) * _BESIDE <= share * memory
    return share if fits else None


def weights_size(path: str) -> int:
    """Return the size of a model's weights in bytes; 0 if it is on a hub, or there are none."""
    folder = Path(path)
    sizes = (sum(each.stat().st_size for each in folder.glob(pattern)) for pattern in _WEIGHTS)
    return next((size for size in sizes if size), 0)
