"""The interface of an embedding model, and how its weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Loading:
    """How weights are loaded; by default whatever suits the machine best."""

    dtype: str = "auto"
    attention: str | None = None
    device: str = "auto"

    def place(self) -> str:
        """Return the device for the computation."""
        if self.device == "auto":
            return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return self.device

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for `from_pretrained`."""
        exact = "bfloat16" if self.place() == "cuda" and torch.cuda.is_bf16_supported() else "float32"
        dtype = getattr(torch, exact if self.dtype == "auto" else self.dtype)
        return {"dtype": dtype} | ({"attn_implementation": self.attention} if self.attention else {})


class Model(Protocol):
    """A loaded model."""

    library: str
    """`sentence-transformers` or `transformers`."""
    dimension: int
    """Size of a vector."""
    longest: int | None
    """Max sequence length; None without a limit."""

    def vectors(self, texts: Sequence[str], batch_size: int) -> Vectors:
        """Return one row for each text, as the model returns it."""
        ...

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the character offsets of the tokens of a text."""
        ...
