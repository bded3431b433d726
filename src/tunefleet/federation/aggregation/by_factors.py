"""Strategies on the factors, elementwise; all updates must have equal ranks.

The robust rules, median and trimmed mean, work on the factors, which are only meaningful in one basis: because (B
R)(R⁻¹ A) is the same update as B · A for every R, an update in another basis looks like an outlier, or shifts the
median arbitrarily. So ranks must be equal, and the workers must start each round from the published adapter. Updates
are not weighted by examples, because a malicious worker could claim many. `krum` and `multi_krum` compare products and
have no such limit. Source: Yin et al. 2018, https://arxiv.org/abs/1803.01498.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

import numpy as np

from tunefleet.errors import InputError
from tunefleet.federation.adapter import TENSORS, AdapterConfig
from tunefleet.federation.aggregation.averaging_job import AveragingJob
from tunefleet.federation.aggregation.blocks import BLOCK, THREADS, Span, in_threads, spans
from tunefleet.federation.aggregation.fedopt import ServerOptimizer
from tunefleet.federation.aggregation.linear import Recipe, combine, copy_frozen, recipe
from tunefleet.federation.aggregation.sources import Ingredient, Source, check_ranks, comparable
from tunefleet.federation.floats import Array
from tunefleet.federation.safetensors_writer import AdapterWriter

# Memory limit for the pieces of all updates on all threads.
_MAX_BYTES: Final = 16 << 20


def mean(job: AveragingJob) -> AdapterConfig:
    """Write the weighted mean (`fedavg`, `fedprox`), or a server optimizer's step towards it.

    Returns:
        The output config.
    """
    like = _comparable(job, f"Strategy {job.spec.name}, which averages factors elementwise,")
    mixed = recipe(job.sources, job.shares(), kept=job.clip(factors=True), previous=job.previous)
    with ExitStack() as stack:
        written = stack.enter_context(AdapterWriter(job.into / TENSORS, job.shapes(mixed, like)))
        optimizer = _optimizer(job, like, stack) if job.spec.keeps_state else None
        combine(_moving(mixed, like), written, None if optimizer is None else optimizer.step)
        copy_frozen(job.sources, like.parts.frozen, written)
    job.bytes_written += written.size_bytes
    return like.config


def ordered(job: AveragingJob) -> AdapterConfig:
    """Write the elementwise median, or the mean without the extremes (`trimmed_mean`).

    Returns:
        The output config.

    Raises:
        InputError: If there are fewer than three updates.
    """
    like = _comparable(job, f"Strategy {job.spec.name}, which sorts factors elementwise,")
    count = len(job.sources)
    if count < job.spec.min_updates:
        raise InputError(
            f"{job.spec.name} requires {job.spec.min_updates} updates; there are {count}.",
            hint="Raise min_workers, or use another strategy.",
        )
    cut = _middle(count) if job.spec.name == "median" else trimmed(count, job.spec.trim or 0.0)
    job.weights.update({source.worker: 1.0 / count for source in job.sources})
    job.notes.append(
        f"Of the {count} values of each parameter, the {cut} smallest and the {cut} largest were excluded."
    )
    kept = job.clip(factors=True)
    mixed = recipe(job.sources, [1.0] * count, kept=kept, previous=job.previous, rest=False)
    old = {} if job.previous is None or min(kept) == 1.0 else comparable(job.previous, like)
    with AdapterWriter(job.into / TENSORS, job.shapes(mixed, like)) as written:
        _combine_ordered(_moving(mixed, like), cut, written, old, kept)
        copy_frozen(job.sources, like.parts.frozen, written)
    job.bytes_written += written.size_bytes
    return like.config


def _comparable(job: AveragingJob, why: str) -> Source:
    """Check that factors are comparable; returns the adapter with the output's shapes."""
    needed = job.previous if job.spec.clip_norm is not None or job.spec.keeps_state else None
    check_ranks([*job.sources, *([] if needed is None else [needed])], why)
    return job.sources[0]


def _moving(mixed: Recipe, like: Source) -> Recipe:
    return {name: each for name, each in mixed.items() if name not in like.parts.frozen}


def _optimizer(job: AveragingJob, like: Source, stack: ExitStack) -> ServerOptimizer:
    if job.new_state is None:
        raise InputError(f"Strategy {job.spec.name} requires a file for its optimizer's state (new_state).")
    if job.previous is None:
        job.notes.append("The first version is the plain average; the optimizer starts with the second.")
    shapes = {name: tensor.shape for name, tensor in like.file.tensors.items() if name not in like.parts.frozen}
    before = None if job.previous is None else comparable(job.previous, like)
    return stack.enter_context(ServerOptimizer(job.spec, before, shapes, job.state, job.new_state))


def trimmed(count: int, trim: float) -> int:
    """Return how many of `count` values are excluded at each end.

    Args:
        count: Number of values; 3 or more.
        trim: Fraction to exclude; at least one value is excluded.
    """
    # In floating point 0.29 · 100 is slightly less than 29.
    return min(max(1, int(trim * count + 1e-9)), (count - 1) // 2)


def _middle(count: int) -> int:
    """Return how many of `count` sorted values are before the median, or before the two middle ones."""
    return (count - 1) // 2


def _combine_ordered(
    rows: Recipe, cut: int, written: AdapterWriter, old: Mapping[str, Ingredient], kept: Sequence[float]
) -> None:
    """Sort each parameter over the updates, exclude values at both ends, and write the mean of the rest."""
    count = max(len(each) for each in rows.values())
    block = max(1024, min(BLOCK, _MAX_BYTES // (4 * THREADS * count)))

    def work(pieces: Iterable[Span]) -> None:
        buffers = [np.empty(block, np.float32) for _ in range(count + 1)]
        for name, start, stop in pieces:
            lines = [buffer[: stop - start] for buffer in buffers]
            for ingredient, line in zip(rows[name], lines, strict=False):
                _read(ingredient, start, line)
            if name in old:
                _make_up(old[name], kept, start, lines)
            order(lines[:count])
            written.write(name, start, _mean(lines[cut : count - cut]))

    in_threads(work, spans({name: written.tensors[name].size for name in rows}, block))


def _read(ingredient: Ingredient, start: int, out: Array) -> None:
    ingredient.file.read(ingredient.tensor, start, out)
    if ingredient.factor != 1.0:
        out *= np.float32(ingredient.factor)


def _make_up(old: Ingredient, kept: Sequence[float], start: int, lines: Sequence[Array]) -> None:
    before = lines[-1]
    _read(old, start, before)
    for part, line in zip(kept, lines, strict=False):
        if part < 1.0:
            np.add(line, before * np.float32(1.0 - part), out=line)


def _mean(lines: Sequence[Array]) -> Array:
    total = lines[0].copy()
    for line in lines[1:]:
        total += line
    total /= np.float32(len(lines))
    return total


def order(lines: Sequence[Array]) -> None:
    """Sort elementwise over several arrays in place: the first gets the smallest value of each position.

    Args:
        lines: Arrays of equal length.
    """
    smaller = np.empty_like(lines[0])
    for low, high in network(len(lines)):
        np.minimum(lines[low], lines[high], out=smaller)
        np.maximum(lines[low], lines[high], out=lines[high])
        np.copyto(lines[low], smaller)


def network(count: int) -> Iterator[tuple[int, int]]:
    """Yield the comparisons of a sorting network for `count` values.

    Source: Batcher's merge exchange, Knuth, The Art of Computer Programming 3, 5.2.2 M.
    """
    if count < 2:
        return
    top = 1 << ((count - 1).bit_length() - 1)
    step = top
    while step:
        reach, offset, apart = top, 0, step
        while True:
            for low in range(count - apart):
                if low & step == offset:
                    yield low, low + apart
            if reach == step:
                break
            apart, reach, offset = reach - step, reach >> 1, step
        step >>= 1
