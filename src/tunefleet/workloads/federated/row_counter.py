"""Counts the rows that a run has trained on, by observing batches instead of multiplying settings.

A hook on the body of the model sees every forward pass with gradients. It includes partial batches and any gradient
accumulation or sampler, and excludes evaluations, generation and passes of the reference model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from tunefleet.errors import InputError

# Arguments whose first axis is the batch, in order of preference.
_FIRST = ("input_ids", "inputs_embeds", "pixel_values", "input_features", "input_values")
# TRL configs of preference pairs: a chosen and a rejected sequence are one row.
_PAIRS = frozenset({"DPOConfig", "RewardConfig", "ORPOConfig", "CPOConfig"})


class RowCounter:
    """Counts trained rows from its creation until `close`; in a custom training loop, use it as a context manager.

        with RowCounter(model) as rows:
            for step, batch in enumerate(batches, start=1):
                ...
                if step % 100 == 0:
                    federation.upload(folder, step=step, num_examples=rows.take())

    Args:
        sequences_per_row: Number of sequences per data row; 2 for preference pairs.
    """

    def __init__(self, model: nn.Module, *, sequences_per_row: int = 1) -> None:
        if sequences_per_row < 1:
            raise InputError(f"sequences_per_row is {sequences_per_row}.", hint="Use a whole number of at least 1.")
        self._per_row = sequences_per_row
        self._seen: int | torch.Tensor = 0
        self._hook = body_of(model).register_forward_pre_hook(self._count, with_kwargs=True)

    def __enter__(self) -> RowCounter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop counting."""
        self._hook.remove()

    def take(self) -> int:
        """Return the number of rows since the last call."""
        seen, self._seen = int(self._seen), 0
        # The two sequences of a pair may be in separate passes; by the end of a step both have passed.
        return -(-seen // self._per_row)

    @torch.compiler.disable
    def _count(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if module.training and torch.is_grad_enabled():
            self._seen = self._seen + sequences(args, kwargs)


def sequences(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | torch.Tensor:
    """Return the number of sequences in a forward pass.

    A padding-free batch has all sequences in one row. They are counted by the length of `cu_seq_lens_q`, else by the
    positions that restart at 0; the result is then a tensor on the device, which is not synchronized.
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
            "The model is called without tensors, so its rows cannot be counted.",
            hint="Count them in your training loop, and upload with FederatedClient.",
        )
    positions = kwargs.get("position_ids")
    flat = first.shape[0] == 1 and isinstance(positions, torch.Tensor) and kwargs.get("attention_mask") is None
    return (positions == 0).sum().clamp(min=1) if flat and positions is not None else int(first.shape[0])


def body_of(model: Any) -> nn.Module:
    """Return the body of a model, which every forward pass uses, without wrappers and head."""
    # Some trainers bypass the outer `forward`, for example with a fused head; the body is always called.
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
    """Return the number of sequences per row with these arguments: 2 in TRL trainers for preference pairs, else 1."""
    return 2 if any(kind.__name__ in _PAIRS for kind in type(args).__mro__) else 1
