"""Weighted sums of tensors, elementwise: FedAvg and the strategies built on it.

This works on the factors: the mean of B times the mean of A is not the mean of B · A. The two are close as long as the
workers start every round from one adapter and do not move far; docs/explanation/averaging-lora.md has measurements.
Source: FedAvg, McMahan et al. 2017, https://arxiv.org/abs/1602.05629.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tunefleet.errors import AdapterRefused
from tunefleet.federation.aggregation.blocks import BLOCK, Span, in_threads, mix, spans
from tunefleet.federation.aggregation.sources import Ingredient, Source, comparable
from tunefleet.federation.floats import Array
from tunefleet.federation.safetensors_writer import AdapterWriter

# The terms of each output tensor, by name.
Recipe = Mapping[str, Sequence[Ingredient]]
# Maps a tensor, the start of a piece and its average to the published values.
Step = Callable[[str, int, Array], Array]


def recipe(
    sources: Sequence[Source],
    shares: Sequence[float],
    *,
    kept: Sequence[float] | None = None,
    previous: Source | None = None,
    rest: bool = True,
) -> dict[str, list[Ingredient]]:
    """Return the terms of the weighted sum of updates.

    Args:
        sources: The updates; their scales may differ, their ranks must not.
        shares: Their weights, which sum to one.
        kept: Which part of each change is kept; 1 without norm clipping.
        previous: The adapter that they changed; without it B · A is clipped by scaling B.
        rest: Whether the clipped part is replaced by `previous`.
    """
    like = sources[0]
    mixed: dict[str, list[Ingredient]] = {name: [] for name in like.file.tensors}
    kept = kept or [1.0] * len(sources)
    factors_b = {layer.b for layer in like.parts.layers.values()}
    for source, share, part in zip(sources, shares, kept, strict=True):
        for name, ingredient in comparable(source, like).items():
            shortened = part if previous is not None or name in factors_b else 1.0
            mixed[name].append(ingredient._replace(factor=ingredient.factor * share * shortened))
    lacking = sum(share * (1.0 - part) for share, part in zip(shares, kept, strict=True))
    if previous is not None and rest and lacking > 0:
        for name, ingredient in comparable(previous, like).items():
            mixed[name].append(ingredient._replace(factor=ingredient.factor * lacking))
    return mixed


def combine(mixed: Recipe, written: AdapterWriter, step: Step | None = None) -> None:
    """Compute and write the sums.

    Args:
        mixed: The terms of each tensor.
        step: Applied to the average before it is written.
    """

    def work(pieces: Iterable[Span]) -> None:
        out, scratch = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
        for name, start, stop in pieces:
            size = stop - start
            mix(mixed[name], start, out[:size], scratch[:size])
            written.write(name, start, out[:size] if step is None else step(name, start, out[:size]))

    in_threads(work, spans({name: written.tensors[name].size for name in mixed}))


def copy_frozen(sources: Sequence[Source], names: Iterable[str], written: AdapterWriter) -> None:
    """Write tensors of the base model, which must be equal in all updates.

    Raises:
        AdapterRefused: If they differ.
    """
    mine, theirs = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    for name, start, stop in spans({name: written.tensors[name].size for name in names}):
        size = stop - start
        first = sources[0].file
        first.read(first.tensors[name], start, mine[:size])
        for source in sources[1:]:
            source.file.read(source.file.tensors[name], start, theirs[:size])
            if not np.array_equal(mine[:size], theirs[:size]):
                raise AdapterRefused(
                    f"The tensor {name!r} belongs to the base model, but differs between {sources[0].worker!r} and "
                    f"{source.worker!r}.",
                    hint="Train on the same base model, or list the layer in modules_to_save.",
                    tensor=name,
                )
        written.write(name, start, mine[:size])
