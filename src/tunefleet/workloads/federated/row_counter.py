"""How many rows a training has really trained on: counted where they pass, not reckoned from the settings.

A hook on the body of the model sees every batch that goes forward with gradients: partial batches, whatever
accumulation and sampler do, and nothing of evaluations, generation and reference passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from tunefleet.errors import InputError

# Which argument's first axis is the batch, in the order of preference.
_FIRST = ("input_ids", "inputs_embeds", "pixel_values", "input_features", "input_values")
# TRL's trainings on pairs: a chosen and a rejected sequence are one row.
_PAIRS = frozenset({"DPOConfig", "RewardConfig", "ORPOConfig", "CPOConfig"})


class RowCounter:
    """Counts rows from the moment it is made until `close`; for a loop of your own a context manager.

        with RowCounter(model) as rows:
            for step, batch in enumerate(batches, start=1):
                ...
                if step % 100 == 0:
                    federation.upload(folder, step=step, num_examples=rows.take())

    Args:
        sequences_per_row: How many sequences a row of the data becomes; 2 where it is a pair.
    """

    def __init__(self, model: nn.Module, *, sequences_per_row: int = 1) -> None:
        if sequences_per_row < 1:
            raise InputError(f"sequences_per_row is {sequences_per_row}.", hint="Write a whole number from 1.")
        self._per_row = sequences_per_row
        self._seen: int | torch.Tensor = 0
        self._hook = body_of(model).register_forward_pre_hook(self._count, with_kwargs=True)

    def __enter__(self) -> RowCounter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Count no more."""
        self._hook.remove()

    def take(self) -> int:
        """Return how many rows have passed since the last call."""
        seen, self._seen = int(self._seen), 0
        # A pair whose halves pass one after the other is whole by the end of a step.
        return -(-seen // self._per_row)

    @torch.compiler.disable
    def _count(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if module.training and torch.is_grad_enabled():
            self._seen = self._seen + sequences(args, kwargs)


def sequences(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | torch.Tensor:
    """Return how many sequences a forward pass is given.

    In a batch without padding several lie one behind the other in a single line. Where each begins is told by
    `cu_seq_lens_q`, whose length costs nothing to read, else by the positions that begin anew; the result is then a
    tensor where that lies, which is not waited for.
    """
    bounds = kwargs.get("cu_seq_lens_q")
    if isinstance(bounds, torch.Tensor):
        return max(bounds.numel() - 1, 1)
    named = (kwargs[name] for name in _FIRST if isinstance(kwargs.get(name), torch.Tensor))
    others = (value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and value.ndim > 0)
    first = next(named, None)
    first = next(others, None) if first is None else first
    if first is None:
        raise InputError(
            "The model is called without a tensor, so its rows cannot be counted.",
            hint="Count them yourself, and upload with FederatedClient.",
        )
    positions = kwargs.get("position_ids")
    flat = first.shape[0] == 1 and isinstance(positions, torch.Tensor) and kwargs.get("attention_mask") is None
    return (positions == 0).sum().clamp(min=1) if flat and positions is not None else int(first.shape[0])


def body_of(model: Any) -> nn.Module:
    """Return the part of a model through which every pass goes, whatever stands around it or takes its head's place."""
    inner = model
    while (below := _below(inner)) is not None:
        inner = below
    body = getattr(inner, "base_model", None)
    return body if isinstance(body, nn.Module) else inner


def _below(model: Any) -> Any:
    for name in ("_orig_mod", "module"):
        if isinstance(found := getattr(model, name, None), nn.Module):
            return found
    return model.get_base_model() if hasattr(model, "get_base_model") and hasattr(model, "peft_config") else None


def sequences_per_row(args: object) -> int:
    """Return how many sequences a row becomes in a training with these arguments: 2 in TRL's trainings on pairs."""
    return 2 if any(kind.__name__ in _PAIRS for kind in type(args).__mro__) else 1
