"""Classifies the tensors of an adapter: pairs of factors, fully trained layers, and frozen tensors.

A pair represents the update scale · B · A of one weight. Its A has the shape (rank, inputs) and its B (outputs, rank),
also where PEFT transposes the product when it merges it: for embeddings (`lora_embedding_A`, `lora_embedding_B`) and
for layers that store their weight as (inputs, outputs) (`fan_in_fan_out`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tunefleet.errors import AdapterRefused
from tunefleet.federation.adapter import AdapterConfig, AdapterFile
from tunefleet.federation.header import TensorInfo

PREFIX: Final = "base_model.model."
_FACTOR: Final = re.compile(r"(?P<module>.+)\.(?P<kind>lora_(?:embedding_)?)(?P<side>[AB])(?P<end>\.weight)?")
_NAMED: Final = re.compile(r".+\.lora_(?:embedding_)?[AB]\..+")
_FROZEN: Final = re.compile(r".+\.base_layer\.(?:weight|bias)|(?:.+\.)?(?:embed_tokens|lm_head)\.weight")
_GATHER: Final = "With DeepSpeed ZeRO-3 or FSDP, gather the shards before you save the adapter."


@dataclass(frozen=True, slots=True)
class Layer:
    """The two factors of one layer in one adapter.

    Args:
        module: Name of the module, without PEFT's prefix.
        a: Name of the tensor A, of shape (rank, columns).
        b: Name of the tensor B, of shape (rows, rank).
        rank: Number of rows of A.
        rows: Rows of B · A.
        columns: Columns of B · A.
        scale: Scale of B · A.
    """

    module: str
    a: str
    b: str
    rank: int
    rows: int
    columns: int
    scale: float


@dataclass(frozen=True, slots=True)
class Parts:
    """The tensors of one adapter by kind, sorted by name.

    Args:
        layers: Pairs of factors, by module.
        whole: Tensors of fully trained layers (`modules_to_save`).
        frozen: Tensors of the base model that PEFT saved with the adapter: must be equal in all updates.
    """

    layers: Mapping[str, Layer]
    whole: tuple[str, ...]
    frozen: tuple[str, ...]


def parts_of(config: AdapterConfig, file: AdapterFile) -> Parts:
    """Classify the tensors of an adapter.

    Raises:
        AdapterRefused: If a tensor is not supported, a factor is missing, or a rank differs from the config's.
    """
    factors: dict[str, dict[str, str]] = {}
    whole: list[str] = []
    frozen: list[str] = []
    for name, tensor in file.tensors.items():
        matched = _FACTOR.fullmatch(_plain(name))
        if matched is not None and (matched["kind"] == "lora_embedding_") == (matched["end"] is None):
            factors.setdefault(matched["module"], {})[matched["side"]] = name
        elif "lora_" in name:
            raise _not_understood(name)
        elif not tensor.size:
            raise AdapterRefused(f"The tensor {name!r} is empty.", hint=_GATHER, tensor=name)
        elif _is_whole(name, config.modules_to_save):
            whole.append(name)
        elif _FROZEN.fullmatch(name):
            frozen.append(name)
        else:
            raise _not_understood(name)
    if not factors:
        raise AdapterRefused("The adapter has no LoRA tensors (lora_A, lora_B).")
    layers = {module: _layer(module, factors[module], config, file.tensors) for module in sorted(factors)}
    return Parts(layers, tuple(sorted(whole)), tuple(sorted(frozen)))


def _plain(name: str) -> str:
    if not name.startswith(PREFIX):
        raise AdapterRefused(
            f"The tensor {name!r} does not start with {PREFIX}.",
            hint="Save the adapter with PEFT's save_pretrained.",
            tensor=name,
        )
    return name.removeprefix(PREFIX)


def _is_whole(name: str, modules: tuple[str, ...]) -> bool:
    """Return whether a tensor belongs to one of these modules; like PEFT, compares the ends of names."""
    return bool(modules) and any(parent.endswith(modules) for parent in _parents(name.removeprefix(PREFIX)))


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _not_understood(name: str) -> AdapterRefused:
    if _NAMED.fullmatch(name):
        hint = "It contains an adapter name; save with PEFT's save_pretrained, which removes it."
    elif "lora_magnitude_vector" in name:
        hint = "DoRA's magnitudes cannot be averaged; train without use_dora."
    else:
        hint = "Supported: lora_A, lora_B, lora_embedding_A, lora_embedding_B and the layers in modules_to_save."
    return AdapterRefused(f"The tensor {name!r} is not supported.", hint=hint, tensor=name)


def _layer(module: str, names: Mapping[str, str], config: AdapterConfig, tensors: Mapping[str, TensorInfo]) -> Layer:
    if len(names) < 2:
        side, name = next(iter(names.items()))
        other = "B" if side == "A" else "A"
        raise AdapterRefused(
            f"The tensor {name!r} has no matching {other}.", hint="Save the adapter again.", tensor=name
        )
    for name in names.values():
        shape = tensors[name].shape
        if len(shape) != 2:
            raise AdapterRefused(
                f"The tensor {name!r} has {len(shape)} dimensions; only factors of matrices can be averaged.",
                tensor=name,
            )
        if 0 in shape:
            raise AdapterRefused(f"The tensor {name!r} is empty: its shape is {shape}.", hint=_GATHER, tensor=name)
    a, b = tensors[names["A"]], tensors[names["B"]]
    rank = a.shape[0]
    if b.shape[1] != rank:
        raise AdapterRefused(
            f"The tensor {names['B']!r} has rank {b.shape[1]}, but its A has rank {rank}.", tensor=names["B"]
        )
    if rank != config.rank_of(module):
        raise AdapterRefused(
            f"The tensor {names['A']!r} has rank {rank}, but the adapter's config says {config.rank_of(module)}.",
            hint="Upload the config that was saved with it.",
            tensor=names["A"],
        )
    return Layer(module, names["A"], names["B"], rank, b.shape[0], a.shape[1], config.scale_of(module, rank))
