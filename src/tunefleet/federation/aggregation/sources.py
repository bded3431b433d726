"""Opened adapters of one aggregation, and their comparison."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tunefleet.errors import AdapterRefused, InputError
from tunefleet.federation.adapter import CONFIG, TENSORS, AdapterConfig, AdapterFile, read_config
from tunefleet.federation.header import TensorInfo
from tunefleet.federation.layers import Layer, Parts, parts_of


@dataclass(frozen=True, slots=True)
class Source:
    """An opened adapter.

    Args:
        num_examples: Rows that it was trained on.
        parts: Its tensors by kind.
    """

    worker: str
    num_examples: int
    config: AdapterConfig
    file: AdapterFile
    parts: Parts


class Ingredient(NamedTuple):
    """One tensor of one adapter, and its factor in a sum or comparison."""

    file: AdapterFile
    tensor: TensorInfo
    factor: float


@contextmanager
def opened(updates: Sequence[Update], previous: Update | None) -> Iterator[tuple[list[Source], Source | None]]:
    """Open adapters and check that they match.

    Args:
        previous: The global adapter that they started from, if there is one.

    Raises:
        InputError: If there are no updates, or two of one worker.
        AdapterRefused: If an adapter does not match the others; names the worker and the tensor.
    """
    if not updates:
        raise InputError("There are no updates to average.")
    # Sorted by worker: the order of arrival must not change a single bit of the output.
    names = sorted(update.worker for update in updates)
    twice = next((name for name, after in itertools.pairwise(names) if name == after), None)
    if twice is not None:
        raise InputError(f"Worker {twice!r} has two updates in one average.", hint="Use only its newest one.")
    with ExitStack() as stack:
        sources = [_open(update, stack) for update in sorted(updates, key=lambda update: update.worker)]
        before = None if previous is None else _open(previous, stack)
        for source in [*sources[1:], *([] if before is None else [before])]:
            _check_alike(sources[0], source)
        yield sources, before


def _open(update: Update, stack: ExitStack) -> Source:
    if type(update.num_examples) is not int or update.num_examples < 1:
        raise AdapterRefused(
            f"The update of {update.worker!r} has {update.num_examples} examples; at least 1 is required."
        )
    try:
        file = stack.enter_context(AdapterFile(update.path))
        parts = parts_of(update.config, file)
    except AdapterRefused as error:
        raise _of(update.worker, error) from error
    return Source(update.worker, update.num_examples, update.config, file, parts)


def _of(worker: str, error: AdapterRefused) -> AdapterRefused:
    return AdapterRefused(f"Update of {worker!r}: {error.message}", hint=error.hint, tensor=error.tensor)


def _check_alike(first: Source, other: Source) -> None:
    """Refuse tensors that only some adapters have: their weights would not sum to one."""
    mine, theirs = _shapes(first), _shapes(other)
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            lacking = next((each.worker for each in (first, other) if name not in _shapes(each)), None)
            what = (
                f"is missing in the update of {lacking!r}"
                if lacking is not None
                else f"has different shapes in the updates of {other.worker!r} and {first.worker!r}"
            )
            raise AdapterRefused(f"The tensor {name!r} {what}.", hint="Validate updates when they arrive.", tensor=name)


def _shapes(source: Source) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes without the rank, which may differ."""
    found: dict[str, tuple[int, ...]] = {}
    for layer in source.parts.layers.values():
        found[layer.a], found[layer.b] = (layer.columns,), (layer.rows,)
    for name in (*source.parts.whole, *source.parts.frozen):
        found[name] = source.file.tensors[name].shape
    return found


def check_ranks(sources: Sequence[Source], why: str) -> None:
    """Refuse adapters whose factors are not comparable elementwise.

    Args:
        why: The operation, as the subject of a sentence.

    Raises:
        AdapterRefused: If two have different ranks.
    """
    first = sources[0]
    for source in sources[1:]:
        for module, layer in source.parts.layers.items():
            rank = first.parts.layers[module].rank
            if layer.rank != rank:
                raise AdapterRefused(
                    f"{why} requires equal ranks: the tensor {layer.a!r} of {source.worker!r} has rank {layer.rank}, "
                    f"that of {first.worker!r} has {rank}.",
                    hint="Average products instead: the strategy fedavg_exact supports mixed ranks.",
                    tensor=layer.a,
                )


def common_dtype(sources: Sequence[Source], name: str) -> str:
    """Return the type of a tensor in the updates; float32 if they differ."""
    found = {source.file.tensors[name].dtype for source in sources}
    return found.pop() if len(found) == 1 else "F32"


def comparable(source: Source, like: Source) -> dict[str, Ingredient]:
    """Return an adapter's tensors with factors that make them comparable with another adapter's.

    Different scales of B · A are moved into B: the same update, expressed with the other alpha.

    Args:
        like: The adapter that defines the scale.
    """
    factors = {layer.b: _ratio(layer, like.parts.layers[module]) for module, layer in source.parts.layers.items()}
    return {
        name: Ingredient(source.file, tensor, factors.get(name, 1.0)) for name, tensor in source.file.tensors.items()
    }


def _ratio(layer: Layer, like: Layer) -> float:
    return 1.0 if layer.scale == like.scale else layer.scale / like.scale


@dataclass(frozen=True, slots=True)
class Update:
    """The adapter of a worker.

    Args:
        worker: Name of the worker; unique in an average.
        path: Its `adapter_model.safetensors`.
        config: Its `adapter_config.json`.
        num_examples: Rows that it was trained on since the previous version.
    """

    worker: str
    path: Path
    config: AdapterConfig
    num_examples: int = 1


def update_in(folder: Path, *, worker: str = "global", num_examples: int = 1) -> Update:
    """Return the adapter in a folder that `save_pretrained` wrote.

    Args:
        folder: Contains `adapter_model.safetensors` and `adapter_config.json`.
        num_examples: Rows that it was trained on.

    Raises:
        AdapterRefused: If its config is invalid.
    """
    return Update(worker, folder / TENSORS, read_config((folder / CONFIG).read_bytes()), num_examples)
