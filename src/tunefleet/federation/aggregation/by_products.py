"""Strategies on the products scale · B · A, whatever basis, rank and alpha the factors have.

Krum: of n updates, f of which may be arbitrary, each gets as its score the sum of the squared distances to its n - f -
2 nearest neighbors; the smallest score is chosen (`krum`), or the `keep` smallest are averaged (`multi_krum`). The
updates of f malicious workers cannot be chosen unless they are as near to honest updates as those are to each other.
Source: Blanchard et al. 2017, https://arxiv.org/abs/1703.02757.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np

from tunefleet.errors import AdapterRefused, InputError
from tunefleet.federation.adapter import CONFIG, TENSORS, AdapterConfig
from tunefleet.federation.aggregation.averaging_job import AveragingJob
from tunefleet.federation.aggregation.exact import Terms, side_by_side, to_rank
from tunefleet.federation.aggregation.linear import Recipe, combine, copy_frozen, recipe
from tunefleet.federation.aggregation.sources import Source
from tunefleet.federation.aggregation.stacks import squared_norms_and_distances
from tunefleet.federation.floats import Wide
from tunefleet.federation.safetensors_writer import AdapterWriter

# Subfolder of the output for the residual, the part that does not fit into the adapter's rank.
RESIDUAL: Final = "residual"


def mean(job: AveragingJob) -> AdapterConfig:
    """Write the weighted mean of the products.

    Returns:
        The output config.
    """
    return _average(job, job.sources, job.shares(), job.clip(factors=False))


def nearest(job: AveragingJob) -> AdapterConfig:
    """Write the update with the nearest neighbors (`krum`), or the mean of several (`multi_krum`).

    Returns:
        The output config.

    Raises:
        InputError: If there are too few updates.
    """
    _, apart = squared_norms_and_distances(job.sources)
    byzantine = job.spec.byzantine or 0
    found = _krum_scores(apart, byzantine)
    count = len(job.sources)
    keep = 1 if job.spec.name == "krum" else job.spec.keep or count - byzantine
    if keep > count:
        raise InputError(f"multi_krum keeps {keep} updates, but there are only {count}.", hint="Lower keep.")
    places = _krum_chosen(found, keep)
    most = max(float(found[place]) for place in places)
    for place, source in enumerate(job.sources):
        job.scores[source.worker] = float(found[place])
        if place not in places:
            job.excluded[source.worker] = f"Too far from the others: score {found[place]:.3g}, limit {most:.3g}."
    kept = [job.sources[place] for place in places]
    if job.spec.name == "krum":
        job.weights[kept[0].worker] = 1.0
        return _copy(job, kept[0])
    return _average(job, kept, job.shares(kept), [1.0] * keep)


def _average(job: AveragingJob, sources: list[Source], shares: Sequence[float], kept: Sequence[float]) -> AdapterConfig:
    like = max(sources, key=lambda source: source.config.rank)
    added, parts = list(sources), [share * part for share, part in zip(shares, kept, strict=True)]
    if job.previous is not None and min(kept) < 1.0:
        added.append(job.previous)
        parts.append(max(0.0, 1.0 - sum(parts)))
    terms = Terms(added, parts, like)
    config = like.config if job.spec.rank is None else like.config.resized(job.spec.rank)
    if job.spec.output == "stack":
        config = like.config.unscaled(max(terms.widths().values()))
    whole = recipe(sources, shares, kept=kept, previous=job.previous)
    write(job, terms, config, {name: whole[name] for name in like.parts.whole})
    return config


def write(job: AveragingJob, terms: Terms, config: AdapterConfig, whole: Recipe) -> None:
    """Write an average of products.

    Args:
        job: The aggregation.
        terms: The terms of the sum.
        config: The output config with rank and scale of each layer.
        whole: The sums of fully trained layers.
    """
    like = terms.like
    ranks = {module: config.rank_of(module) for module in like.parts.layers}
    shapes = {**_factors(job, like, ranks), **job.shapes((*like.parts.whole, *like.parts.frozen), like)}
    with ExitStack() as stack:
        written = stack.enter_context(AdapterWriter(job.into / TENSORS, shapes))
        residual = _residual(job, terms, ranks, stack) if job.spec.output == "residual" else None
        way = side_by_side if job.spec.output == "stack" else to_rank
        job.layers.update(way(terms, config, written, residual))
        combine(whole, written)
        copy_frozen(job.sources, like.parts.frozen, written)
    job.bytes_written += written.size_bytes + (0 if residual is None else residual.size_bytes)


def _factors(job: AveragingJob, like: Source, ranks: Mapping[str, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for module, layer in like.parts.layers.items():
        found[layer.a] = (job.dtype_of(layer.a), (ranks[module], layer.columns))
        found[layer.b] = (job.dtype_of(layer.b), (layer.rows, ranks[module]))
    return found


def _residual(job: AveragingJob, terms: Terms, ranks: Mapping[str, int], stack: ExitStack) -> AdapterWriter:
    """Open the residual's file: an unscaled adapter in float32."""
    frozen = terms.like.parts.frozen
    if frozen:
        raise AdapterRefused(
            f"The updates contain {frozen[0]!r} of the base model: loading the average would undo a merged residual.",
            hint="Save them with save_embedding_layers=False, or use another output.",
            tensor=frozen[0],
        )
    rank = max(1, *(width - ranks[module] for module, width in terms.widths().items()))
    folder: Path = job.into / RESIDUAL
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_bytes(terms.like.config.unscaled(rank, factors_only=True).to_json())
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for layer in terms.like.parts.layers.values():
        shapes[layer.a] = ("F32", (rank, layer.columns))
        shapes[layer.b] = ("F32", (layer.rows, rank))
    return stack.enter_context(AdapterWriter(folder / TENSORS, shapes))


def _copy(job: AveragingJob, source: Source) -> AdapterConfig:
    with AdapterWriter(job.into / TENSORS, job.shapes(source.file.tensors, source)) as written:
        combine(recipe([source], [1.0]), written)
    job.bytes_written += written.size_bytes
    return source.config


def _krum_scores(apart: Wide, byzantine: int) -> Wide:
    """Return each update's score."""
    count = len(apart)
    if count < 2 * byzantine + 3:
        raise InputError(
            f"Krum with byzantine: {byzantine} requires {2 * byzantine + 3} updates; there are {count}.",
            hint="Raise min_workers, or lower byzantine.",
        )
    # Index 0 is the update itself.
    near = np.sort(apart, axis=1)[:, 1 : count - byzantine - 1]
    total: Wide = near.sum(axis=1)
    return total


def _krum_chosen(found: Wide, keep: int) -> list[int]:
    """Return the indexes of the smallest scores; of equal ones the first."""
    return sorted(int(each) for each in np.argsort(found, kind="stable")[:keep])
