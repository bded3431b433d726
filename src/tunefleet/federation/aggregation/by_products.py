"""The strategies that work on the products scale · B · A, whatever basis, rank and alpha the factors have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tunefleet.errors import AdapterRefused, InputError
from tunefleet.federation.adapter import CONFIG, TENSORS, AdapterConfig
from tunefleet.federation.aggregation.averaging_job import Making
from tunefleet.federation.aggregation.distances import squared_norms_and_distances
from tunefleet.federation.aggregation.exact import Terms, side_by_side, to_rank
from tunefleet.federation.aggregation.krum import chosen, scores
from tunefleet.federation.aggregation.linear import Recipe, combine, copy_frozen, recipe
from tunefleet.federation.aggregation.sources import Source
from tunefleet.federation.safetensors_writer import AdapterWriter

# Folder, inside the outcome's, of what an adapter of one rank leaves out.
RESIDUAL: Final = "residual"


def mean(made: Making) -> AdapterConfig:
    """Write the weighted mean of the products.

    Returns:
        The config of the outcome.
    """
    return _average(made, made.sources, made.shares(), made.clip(factors=False))


def nearest(made: Making) -> AdapterConfig:
    """Write the update with the nearest neighbours (`krum`), or the mean of several such (`multi_krum`).

    Returns:
        The config of the outcome.

    Raises:
        InputError: If there are too few updates.
    """
    _, apart = squared_norms_and_distances(made.sources)
    byzantine = made.spec.byzantine or 0
    found = scores(apart, byzantine)
    count = len(made.sources)
    keep = 1 if made.spec.name == "krum" else made.spec.keep or count - byzantine
    if keep > count:
        raise InputError(f"multi_krum is to keep {keep} updates; there are {count}.", hint="Lower keep.")
    places = chosen(found, keep)
    most = max(float(found[place]) for place in places)
    for place, source in enumerate(made.sources):
        made.scores[source.worker] = float(found[place])
        if place not in places:
            made.excluded[source.worker] = (
                f"It is too far from the others: its score is {found[place]:.3g}; what counts has {most:.3g} at most."
            )
    kept = [made.sources[place] for place in places]
    if made.spec.name == "krum":
        made.weights[kept[0].worker] = 1.0
        return _copy(made, kept[0])
    return _average(made, kept, made.shares(kept), [1.0] * keep)


def _average(made: Making, sources: list[Source], shares: Sequence[float], kept: Sequence[float]) -> AdapterConfig:
    like = max(sources, key=lambda source: source.config.rank)
    added, parts = list(sources), [share * part for share, part in zip(shares, kept, strict=True)]
    if made.previous is not None and min(kept) < 1.0:
        added.append(made.previous)
        parts.append(max(0.0, 1.0 - sum(parts)))
    terms = Terms(added, parts, like)
    config = like.config if made.spec.rank is None else like.config.resized(made.spec.rank)
    if made.spec.output == "stack":
        config = like.config.unscaled(max(terms.widths().values()))
    whole = recipe(sources, shares, kept=kept, previous=made.previous)
    write(made, terms, config, {name: whole[name] for name in like.parts.whole})
    return config


def write(made: Making, terms: Terms, config: AdapterConfig, whole: Recipe) -> None:
    """Write an average of products.

    Args:
        made: What the outcome is part of.
        terms: What is added up.
        config: Of the outcome; says rank and scale of each layer.
        whole: How the layers that are trained whole are added up.
    """
    like = terms.like
    ranks = {module: config.rank_of(module) for module in like.parts.layers}
    shapes = {**_factors(made, like, ranks), **made.shapes((*like.parts.whole, *like.parts.frozen), like)}
    with ExitStack() as stack:
        written = stack.enter_context(AdapterWriter(made.into / TENSORS, shapes))
        residual = _residual(made, terms, ranks, stack) if made.spec.output == "residual" else None
        way = side_by_side if made.spec.output == "stack" else to_rank
        made.layers.update(way(terms, config, written, residual))
        combine(whole, written)
        copy_frozen(made.sources, like.parts.frozen, written)
    made.bytes_written += written.size_bytes + (0 if residual is None else residual.size_bytes)


def _factors(made: Making, like: Source, ranks: Mapping[str, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for module, layer in like.parts.layers.items():
        found[layer.a] = (made.dtype_of(layer.a), (ranks[module], layer.columns))
        found[layer.b] = (made.dtype_of(layer.b), (layer.rows, ranks[module]))
    return found


def _residual(made: Making, terms: Terms, ranks: Mapping[str, int], stack: ExitStack) -> AdapterWriter:
    """Open the file of what the outcome leaves out: an adapter too, unscaled, in float32."""
    frozen = terms.like.parts.frozen
    if frozen:
        raise AdapterRefused(
            f"The updates carry {frozen[0]!r} of the base model: loading the average would undo a residual in it.",
            hint="Save them with save_embedding_layers=False, or take another output.",
            tensor=frozen[0],
        )
    rank = max(1, *(width - ranks[module] for module, width in terms.widths().items()))
    folder: Path = made.into / RESIDUAL
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_bytes(terms.like.config.unscaled(rank, factors_only=True).to_json())
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for layer in terms.like.parts.layers.values():
        shapes[layer.a] = ("F32", (rank, layer.columns))
        shapes[layer.b] = ("F32", (layer.rows, rank))
    return stack.enter_context(AdapterWriter(folder / TENSORS, shapes))


def _copy(made: Making, source: Source) -> AdapterConfig:
    with AdapterWriter(made.into / TENSORS, made.shapes(source.file.tensors, source)) as written:
        combine(recipe([source], [1.0]), written)
    made.bytes_written += written.size_bytes
    return source.config
