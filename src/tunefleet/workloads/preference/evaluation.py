"""Eval metrics as means over rows, not over batches of unequal size.

With several processes a few rows may count twice if their number is not a multiple of the global batch size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from tunefleet.workloads.training.exact_trainer import ExactTrainer, preserve_random_state


class ExactEvalTrainer(ExactTrainer):
    """A mixin that comes before one of TRL's trainers, which collect their metrics in `_metrics`."""

    sequences_per_row = 1
    """Number of sequences in a batch per row."""
    _batch_rows: list[int]
    _metrics: Mapping[str, Any]

    def evaluate_rows(self, names: Mapping[str, str]) -> dict[str, float]:
        """Compute the metrics of the eval rows; calls no callbacks and restores the random state.

        Args:
            names: Metric name → TRL's name; metrics that TRL does not report are left out.
        """
        with preserve_random_state():
            output = self.evaluation_loop(self.get_eval_dataloader(), "eval rows", prediction_loss_only=True)
        found = self._metrics["eval"]
        measured = {name: found[theirs][0] for name, theirs in names.items() if found.get(theirs)}
        found.clear()
        return {"loss": float(output.metrics["eval_loss"]), **measured}

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Run the usual loop, and replace the means of batch means by means over rows."""
        self._batch_rows = []
        self._metrics["eval"].clear()
        output = super().evaluation_loop(*args, **kwargs)
        for values in self._metrics["eval"].values():
            values[:] = [_mean(values, self._batch_rows)]
        return output

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Any:
        """Record the number of rows in the batch."""
        self._batch_rows.append(_rows(inputs) // self.sequences_per_row)
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Copy the token count into the state, which is saved in checkpoints."""
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        self.state.num_input_tokens_seen = max(int(self._total_train_tokens), int(self.state.num_input_tokens_seen))
        return loss


def _rows(inputs: Any) -> int:
    if isinstance(inputs, list):
        return len(inputs)
    return next(int(value.shape[0]) for value in inputs.values() if isinstance(value, torch.Tensor))


def _mean(values: list[float | None], rows: list[int]) -> float:
    weights = rows if len(rows) == len(values) else [1] * len(values)
    counted = [
        (value, weight)
        for value, weight in zip(values, weights, strict=True)
        if value is not None and not math.isnan(value)
    ]
    total = sum(weight for _, weight in counted)
    return sum(value * weight for value, weight in counted) / total if total else math.nan
