"""The adapters of one average, opened, and held against each other."""

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
    """One opened adapter.

    Args:
        num_examples: Rows that it was trained on.
        parts: The same by what they are.
    """

    worker: str
    num_examples: int
    config: AdapterConfig
    file: AdapterFile
    parts: Parts


class Ingredient(NamedTuple):
    """One tensor of one adapter, and what it is multiplied by to be comparable with, or added to, the others."""

    file: AdapterFile
    tensor: TensorInfo
    factor: float


@contextmanager
def opened(updates: Sequence[Update], previous: Update | None) -> Iterator[tuple[list[Source], Source | None]]:
    """Open adapters and hold them against each other.

    They come ordered by worker, so that the order in which they arrived changes no bit of the outcome.

    Args:
        previous: The global adapter that they began from, if there is one.

    Raises:
        InputError: If there are none, or a worker is there twice.
        AdapterRefused: If one is not what the others are; it names the worker and the tensor.
    """
    if not updates:
        raise InputError("There are no updates to average.")
    names = sorted(update.worker for update in updates)
    twice = next((name for name, after in itertools.pairwise(names) if name == after), None)
    if twice is not None:
        raise InputError(f"The worker {twice!r} has two updates in one average.", hint="Its newest one counts.")
    with ExitStack() as stack:
        sources = [_open(update, stack) for update in sorted(updates, key=lambda update: update.worker)]
        before = None if previous is None else _open(previous, stack)
        for source in [*sources[1:], *([] if before is None else [before])]:
            _check_alike(sources[0], source)
        yield sources, before


def _open(update: Update, stack: ExitStack) -> Source:
    if type(update.num_examples) is not int or update.num_examples < 1:
        raise AdapterRefused(
            f"The update of {update.worker!r} says {update.num_examples} examples; it takes 1 or more."
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
    """Nothing that is in one and not in another is averaged: its weights would not sum to one."""
    mine, theirs = _shapes(first), _shapes(other)
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            lacking = next((each.worker for each in (first, other) if name not in _shapes(each)), None)
            what = (
                f"is missing in the update of {lacking!r}"
                if lacking is not None
                else f"has other sizes in the update of {other.worker!r} than in that of {first.worker!r}"
            )
            raise AdapterRefused(f"The tensor {name!r} {what}.", hint="Check updates as they arrive.", tensor=name)


def _shapes(source: Source) -> Mapping[str, tuple[int, ...]]:
    """Shapes without the rank, which may differ."""
    found: dict[str, tuple[int, ...]] = {}
    for layer in source.parts.layers.values():
        found[layer.a], found[layer.b] = (layer.columns,), (layer.rows,)
    for name in (*source.parts.whole, *source.parts.frozen):
        found[name] = source.file.tensors[name].shape
    return found


def check_ranks(sources: Sequence[Source], why: str) -> None:
    """Refuse adapters whose factors cannot be compared number by number.

    Args:
        why: What compares them, as the beginning of a sentence.

    Raises:
        AdapterRefused: If two have different ranks.
    """
    first = sources[0]
    for source in sources[1:]:
        for module, layer in source.parts.layers.items():
            rank = first.parts.layers[module].rank
            if layer.rank != rank:
                raise AdapterRefused(
                    f"{why} needs equal ranks: the tensor {layer.a!r} of {source.worker!r} has the rank {layer.rank}, "
                    f"that of {first.worker!r} has {rank}.",
                    hint="Average products instead: the strategy fedavg_exact takes mixed ranks.",
                    tensor=layer.a,
                )


def common_dtype(sources: Sequence[Source], name: str) -> str:
    """Return the type of a tensor in the updates; float32 if they differ."""
    found = {source.file.tensors[name].dtype for source in sources}
    return found.pop() if len(found) == 1 else "F32"


def comparable(source: Source, like: Source) -> dict[str, Ingredient]:
    """Return an adapter's tensors so that each can be compared with another adapter's.

    Where the scales differ, that of B · A is put into B: the same update, said with the other's alpha.

    Args:
        like: The adapter in whose scale it is said.
    """
    factors = {layer.b: _ratio(layer, like.parts.layers[module]) for module, layer in source.parts.layers.items()}
    return {
        name: Ingredient(source.file, tensor, factors.get(name, 1.0)) for name, tensor in source.file.tensors.items()
    }


def _ratio(layer: Layer, like: Layer) -> float:
    return 1.0 if layer.scale == like.scale else layer.scale / like.scale


@dataclass(frozen=True, slots=True)
class Update:
    """One adapter.

    Args:
        worker: Who made it; names in one average differ.
        path: Its `adapter_model.safetensors`.
        config: What its `adapter_config.json` says.
        num_examples: Rows that it was trained on since the version before.
    """

    worker: str
    path: Path
    config: AdapterConfig
    num_examples: int = 1


def update_in(folder: Path, *, worker: str = "global", num_examples: int = 1) -> Update:
    """Return the adapter that `save_pretrained` left in a folder.

    Args:
        folder: It has `adapter_model.safetensors` and `adapter_config.json`.
        num_examples: Rows that it was trained on.

    Raises:
        AdapterRefused: If its config is refused.
    """
    return Update(worker, folder / TENSORS, read_config((folder / CONFIG).read_bytes()), num_examples)
