"""Which rows go through the model together, by the memory that is free."""

from __future__ import annotations

from collections.abc import Sequence

import psutil
import torch
from transformers import PreTrainedModel

from tunefleet.workloads.engine.batch_rows import Row

_MOST_ROWS = {"cuda": 256, "cpu": 32, "mps": 32}
_PART_OF_FREE = {"cuda": 0.8, "cpu": 0.4, "mps": 0.4}
_WORK_COPIES = 6
"""Tensors of the vocabulary's width that drawing a token makes, in float32."""


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Sort rows so that those beside each other are alike: by adapter, then by length, the longest first."""
    return sorted(rows, key=lambda row: (row.request.adapter or "", -len(row.prompt), -row.limit))


class Budget:
    """How many rows fit at once."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        layers: int = getattr(config, "num_hidden_layers", 1)
        self._token_bytes = 2 * layers * heads * width * model.dtype.itemsize + config.hidden_size * 8
        self._row_bytes = _WORK_COPIES * 4 * config.vocab_size
        self._device = model.device
        self._most = _MOST_ROWS.get(self._device.type, 32)

    def next_batch(self, waiting: Sequence[Row]) -> int:
        """Return how many of the first rows go together; at least one."""
        longest = len(waiting[0].prompt) + max(row.limit for row in waiting[: self._most])
        each = longest * self._token_bytes + self._row_bytes
        fit = int(self._free_bytes() * _PART_OF_FREE.get(self._device.type, 0.4) // max(each, 1))
        alike = sum(1 for row in waiting if row.request.adapter == waiting[0].request.adapter)
        return max(1, min(fit, self._most, alike))

    def halve(self, rows: int) -> int:
        """Take fewer rows from now on, since so many did not fit; returns how many."""
        self._most = max(1, rows // 2)
        return self._most

    def _free_bytes(self) -> int:
        if self._device.type != "cuda":
            return psutil.virtual_memory().available
        free, _ = torch.cuda.mem_get_info(self._device)
        kept = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return int(free + kept)
