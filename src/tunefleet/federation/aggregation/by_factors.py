"""The strategies that work on the factors, number by number; all updates have equal ranks there."""

from __future__ import annotations

from contextlib import ExitStack

from tunefleet.errors import InputError
from tunefleet.federation.adapter import TENSORS, AdapterConfig
from tunefleet.federation.aggregation.averaging_job import Making
from tunefleet.federation.aggregation.coordinates import combine_ordered, middle, trimmed
from tunefleet.federation.aggregation.fedopt import ServerOptimizer
from tunefleet.federation.aggregation.linear import Recipe, combine, copy_frozen, recipe
from tunefleet.federation.aggregation.sources import Source, check_ranks, comparable
from tunefleet.federation.safetensors_writer import AdapterWriter


def mean(made: Making) -> AdapterConfig:
    """Write the weighted mean (`fedavg`, `fedprox`), or a server optimiser's step towards it.

    Returns:
        The config of the outcome.
    """
    like = _comparable(made, f"The strategy {made.spec.name}, which averages factors number by number,")
    mixed = recipe(made.sources, made.shares(), kept=made.clip(factors=True), previous=made.previous)
    with ExitStack() as stack:
        written = stack.enter_context(AdapterWriter(made.into / TENSORS, made.shapes(mixed, like)))
        optimizer = _optimizer(made, like, stack) if made.spec.keeps_state else None
        combine(_moving(mixed, like), written, None if optimizer is None else optimizer.step)
        copy_frozen(made.sources, like.parts.frozen, written)
    made.bytes_written += written.size_bytes
    return like.config


def ordered(made: Making) -> AdapterConfig:
    """Write the median, or the mean without the outermost (`trimmed_mean`), of each number.

    Returns:
        The config of the outcome.

    Raises:
        InputError: If there are fewer than three updates.
    """
    like = _comparable(made, f"The strategy {made.spec.name}, which orders factors number by number,")
    count = len(made.sources)
    if count < made.spec.min_updates:
        raise InputError(
            f"{made.spec.name} needs {made.spec.min_updates} updates; there are {count}.",
            hint="Raise min_workers, or take another strategy.",
        )
    cut = middle(count) if made.spec.name == "median" else trimmed(count, made.spec.trim or 0.0)
    made.weights.update({source.worker: 1.0 / count for source in made.sources})
    made.notes.append(f"Of each number, the {cut} smallest and the {cut} largest of {count} were left out.")
    kept = made.clip(factors=True)
    mixed = recipe(made.sources, [1.0] * count, kept=kept, previous=made.previous, rest=False)
    old = {} if made.previous is None or min(kept) == 1.0 else comparable(made.previous, like)
    with AdapterWriter(made.into / TENSORS, made.shapes(mixed, like)) as written:
        combine_ordered(_moving(mixed, like), cut, written, old, kept)
        copy_frozen(made.sources, like.parts.frozen, written)
    made.bytes_written += written.size_bytes
    return like.config


def _comparable(made: Making, why: str) -> Source:
    """Make sure that factors can be compared; returns the adapter that the outcome is shaped as."""
    needed = made.previous if made.spec.clip_norm is not None or made.spec.keeps_state else None
    check_ranks([*made.sources, *([] if needed is None else [needed])], why)
    return made.sources[0]


def _moving(mixed: Recipe, like: Source) -> Recipe:
    return {name: each for name, each in mixed.items() if name not in like.parts.frozen}


def _optimizer(made: Making, like: Source, stack: ExitStack) -> ServerOptimizer:
    if made.new_state is None:
        raise InputError(f"The strategy {made.spec.name} needs a file for its optimiser's state (new_state).")
    if made.previous is None:
        made.notes.append("The first version is the average itself; the optimiser begins with the second.")
    shapes = {name: tensor.shape for name, tensor in like.file.tensors.items() if name not in like.parts.frozen}
    before = None if made.previous is None else comparable(made.previous, like)
    return stack.enter_context(ServerOptimizer(made.spec, before, shapes, made.state, made.new_state))
