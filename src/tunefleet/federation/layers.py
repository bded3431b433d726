"""Which tensors of an adapter belong together: pairs of factors, layers that are trained whole, and what is frozen.

A pair stands for the update scale · B · A of one weight. Its A has the shape (rank, inputs) and its B (outputs, rank),
also where PEFT transposes the product when it merges it: for embeddings (`lora_embedding_A`, `lora_embedding_B`) and
for layers that keep their weight as (inputs, outputs) (`fan_in_fan_out`).
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


@dataclass(frozen=True, slots=True)
class Layer:
    """The two factors of one layer in one adapter.

    Args:
        module: Name of the module, without PEFT's prefix.
        a: Name of the tensor A, of shape (rank, columns).
        b: Name of the tensor B, of shape (rows, rank).
        rank: How many rows A has.
        rows: Of the product B · A.
        columns: Of the product B · A.
        scale: What the product is multiplied by.
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
    """The tensors of one adapter by what they are, each kind ordered by name.

    Args:
        layers: Pairs of factors, by module.
        whole: Tensors of layers that are trained whole (`modules_to_save`).
        frozen: Tensors of the base model that PEFT saved along: they must be equal in all updates.
    """

    layers: Mapping[str, Layer]
    whole: tuple[str, ...]
    frozen: tuple[str, ...]


def parts_of(config: AdapterConfig, file: AdapterFile) -> Parts:
    """Sort the tensors of an adapter.

    Raises:
        AdapterRefused: If a tensor is not understood, a factor lacks the other one, or a rank is not the config's.
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


_GATHER: Final = "With DeepSpeed ZeRO-3 or FSDP the shards must be gathered before the adapter is saved."


def _plain(name: str) -> str:
    if not name.startswith(PREFIX):
        raise AdapterRefused(
            f"The tensor {name!r} does not begin with {PREFIX}.",
            hint="Save the adapter with PEFT's save_pretrained.",
            tensor=name,
        )
    return name.removeprefix(PREFIX)


def _is_whole(name: str, modules: tuple[str, ...]) -> bool:
    """Whether a tensor lies in one of these modules; PEFT compares the ends of names."""
    return bool(modules) and any(parent.endswith(modules) for parent in _parents(name.removeprefix(PREFIX)))


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _not_understood(name: str) -> AdapterRefused:
    if _NAMED.fullmatch(name):
        hint = "It carries the name of an adapter; save with PEFT's save_pretrained, which leaves that out."
    elif "lora_magnitude_vector" in name:
        hint = "DoRA's magnitudes cannot be averaged; train without use_dora."
    else:
        hint = "Only lora_A, lora_B, lora_embedding_A, lora_embedding_B and what modules_to_save lists are."
    return AdapterRefused(f"The tensor {name!r} is not understood.", hint=hint, tensor=name)


def _layer(module: str, names: Mapping[str, str], config: AdapterConfig, tensors: Mapping[str, TensorInfo]) -> Layer:
    if len(names) < 2:
        side, name = next(iter(names.items()))
        other = "B" if side == "A" else "A"
        raise AdapterRefused(f"The tensor {name!r} has no {other} beside it.", hint="Save it again.", tensor=name)
    for name in names.values():
        shape = tensors[name].shape
        if len(shape) != 2:
            raise AdapterRefused(
                f"The tensor {name!r} has {len(shape)} axes; only factors of matrices can be averaged.", tensor=name
            )
        if 0 in shape:
            raise AdapterRefused(f"The tensor {name!r} is empty: its shape is {shape}.", hint=_GATHER, tensor=name)
    a, b = tensors[names["A"]], tensors[names["B"]]
    rank = a.shape[0]
    if b.shape[1] != rank:
        raise AdapterRefused(
            f"The tensor {names['B']!r} has the rank {b.shape[1]}, and its A has {rank}.", tensor=names["B"]
        )
    if rank != config.rank_of(module):
        raise AdapterRefused(
            f"The tensor {names['A']!r} has the rank {rank}, and the adapter's config says {config.rank_of(module)}.",
            hint="Upload the config that was saved with it.",
            tensor=names["A"],
        )
    return Layer(module, names["A"], names["B"], rank, b.shape[0], a.shape[1], config.scale_of(module, rank))
