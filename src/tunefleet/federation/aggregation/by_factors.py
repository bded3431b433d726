"""Strategies on the factors, elementwise; all updates must have equal ranks."""

from __future__ import annotations

from contextlib import ExitStack

from tunefleet.errors import InputError
from tunefleet.federation.adapter import TENSORS, AdapterConfig
from tunefleet.federation.aggregation.averaging_job import AveragingJob
from tunefleet.federation.aggregation.coordinates import combine_ordered, middle, trimmed
from tunefleet.federation.aggregation.fedopt import ServerOptimizer
from tunefleet.federation.aggregation.linear import Recipe, combine, copy_frozen, recipe
from tunefleet.federation.aggregation.sources import Source, check_ranks, comparable
from tunefleet.federation.safetensors_writer import AdapterWriter


def mean(job: AveragingJob) -> AdapterConfig:
    """Write the weighted mean (`fedavg`, `fedprox`), or a server optimizer's step towards it.

    Returns:
        The output config.
    """
    like = _comparable(job, f"The strategy {job.spec.name}, which averages factors elementwise,")
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
    like = _comparable(job, f"The strategy {job.spec.name}, which sorts factors elementwise,")
    count = len(job.sources)
    if count < job.spec.min_updates:
        raise InputError(
            f"{job.spec.name} requires {job.spec.min_updates} updates; there are {count}.",
            hint="Raise min_workers, or use another strategy.",
        )
    cut = middle(count) if job.spec.name == "median" else trimmed(count, job.spec.trim or 0.0)
    job.weights.update({source.worker: 1.0 / count for source in job.sources})
    job.notes.append(
        f"Of the {count} values of each parameter, the {cut} smallest and the {cut} largest were excluded."
    )
    kept = job.clip(factors=True)
    mixed = recipe(job.sources, [1.0] * count, kept=kept, previous=job.previous, rest=False)
    old = {} if job.previous is None or min(kept) == 1.0 else comparable(job.previous, like)
    with AdapterWriter(job.into / TENSORS, job.shapes(mixed, like)) as written:
        combine_ordered(_moving(mixed, like), cut, written, old, kept)
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
        raise InputError(f"The strategy {job.spec.name} requires a file for its optimizer's state (new_state).")
    if job.previous is None:
        job.notes.append("The first version is the plain average; the optimizer starts with the second.")
    shapes = {name: tensor.shape for name, tensor in like.file.tensors.items() if name not in like.parts.frozen}
    before = None if job.previous is None else comparable(job.previous, like)
    return stack.enter_context(ServerOptimizer(job.spec, before, shapes, job.state, job.new_state))
