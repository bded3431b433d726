"""The source of each tensor of the merged model, planned from names and shapes before a weight is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tunefleet.errors import ModelError
from tunefleet.spec.options.model import DtypeName
from tunefleet.workloads.merging.lora import Adapter, Change
from tunefleet.workloads.merging.safetensors_reader import FLOATS, Tensor, TensorFile, size_of
from tunefleet.workloads.merging.skeleton import ModuleKind, Skeleton

# File of tensors that the base does not have: a head that is no longer tied to the embeddings.
_EXTRA: Final = "model-untied.safetensors"
_SINGLE: Final = "model.safetensors"
_STORED: Final = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""Requested dtype → its name in safetensors."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one adapter adds to a tensor."""

    change: Change
    kind: ModuleKind
    factor: float


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor of the merged model."""

    name: str
    source: Tensor
    dtype: str
    parts: tuple[Part, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size in the file."""
        return self.source.size_bytes if self.copied else size_of(self.dtype, self.source.shape)

    @property
    def copied(self) -> bool:
        """Whether its bytes are copied unchanged."""
        return not self.parts and self.dtype == self.source.dtype


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of the merged model.

    Args:
        file: The base's file of that name; None if the base has none.
    """

    name: str
    file: TensorFile | None
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The merged model."""

    shards: tuple[Shard, ...]
    config: dict[str, Any]
    merged: int
    replaced: tuple[str, ...]
    tied: tuple[bool, bool]
    rows: int

    def fingerprint(self, shard: Shard, adapters: Sequence[str]) -> str:
        """Return a digest of a file's sources; equal for equal work on any machine."""
        rows = [[p.name, p.dtype, p.source.name, str(p.source.path.name), [part.factor for part in p.parts]]
                for p in shard.pieces]  # fmt: skip
        text = json.dumps([rows, list(adapters), shard.file.header.hex() if shard.file else None])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(slots=True)
class _Work:
    """State of the planning; names are those of the model."""

    names: dict[str, str]
    base: dict[str, Tensor]
    dtype: str | None = None
    parts: dict[str, list[Part]] = field(default_factory=dict)
    replaced: dict[str, Tensor] = field(default_factory=dict)


def make(
    files: Sequence[TensorFile], skeleton: Skeleton, adapters: Sequence[Adapter], dtype: DtypeName = "auto"
) -> Plan:
    """Plan every tensor.

    Raises:
        ModelError: If an adapter does not fit the base, or two of them contradict each other.
    """
    work = _names(files, skeleton)
    work.dtype = None if dtype == "auto" else _STORED[dtype]
    for adapter in adapters:
        _add_changes(work, skeleton, adapter)
        _add_replaced(work, skeleton, adapter, alone=len(adapters) == 1)
    extra, untied = _untie(work, skeleton, adapters)
    shards = [
        Shard(file.path.name, file, tuple(_piece(work, name, tensor) for name, tensor in _of(work, file)))
        for file in files
    ]
    if extra:
        shards = _with(shards, Shard(_EXTRA, None, tuple(extra)))
    rows = _rows(work, skeleton)
    config: dict[str, Any] = {}
    if untied:
        config["tie_word_embeddings"] = False
    if rows != work.base[skeleton.embedding].shape[0]:
        config["vocab_size"] = rows
    if work.dtype is not None:
        config["dtype"] = dtype
    tied = bool(skeleton.tied)
    return Plan(tuple(shards), config, len(work.parts), tuple(sorted(work.replaced)), (tied, tied and not untied), rows)


def _with(shards: list[Shard], extra: Shard) -> list[Shard]:
    if [shard.name for shard in shards] != [_SINGLE]:
        return [*shards, extra]
    # A file of that name is read as the complete model, even next to others.
    first, second = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    return [Shard(first, shards[0].file, shards[0].pieces), Shard(second, None, extra.pieces)]


def _names(files: Sequence[TensorFile], skeleton: Skeleton) -> _Work:
    """Map the names in the files to the model's; files may lack the name of the model's body."""
    known = {name for name, _ in skeleton.model.named_parameters(remove_duplicate=False)}
    work = _Work({}, {})
    for tensor in (tensor for file in files for tensor in file.tensors):
        # Checkpoints may store names with or without the prefix of the model's body.
        name = next((each for each in (tensor.name, skeleton.prefix + tensor.name) if each in known), tensor.name)
        work.names[tensor.name] = name
        work.base[name] = tensor
    for name, other in skeleton.tied.items():
        if name not in work.base and other in work.base:
            work.base[name] = work.base[other]
        elif other not in work.base and name in work.base:
            work.base[other] = work.base[name]
    if skeleton.embedding not in work.base:
        raise ModelError(f"The base model's files have no {skeleton.embedding}.")
    return work


def _add_changes(work: _Work, skeleton: Skeleton, adapter: Adapter) -> None:
    for module, change in adapter.changes.items():
        kind = skeleton.kind_of(module)
        name = f"{module}.weight"
        if name not in work.base:
            raise ModelError(
                f"The {adapter.label} changes {module}, and the base model's files have no {name}.",
                hint="The files use other tensor names; save the base again with `save_pretrained`.",
            )
        _check_shape(adapter, name, change, kind, _shape(work, adapter, name))
        work.parts.setdefault(name, []).append(Part(change, kind, adapter.weight * change.scale))
        if change.magnitude is None:
            continue
        if kind != "linear":
            raise ModelError(f"The {adapter.label} uses DoRA on {module}, which can be merged on linear layers only.")
        if adapter.weight != 1.0 or len(work.parts[name]) > 1:
            raise ModelError(
                f"The {adapter.label} uses DoRA, whose update is not a sum: it cannot be weighted or added to another "
                "adapter.",
                hint="Merge it on its own, with weight 1.",
            )
    dora = [name for name, parts in work.parts.items() if len(parts) > 1 and any(p.change.magnitude for p in parts)]
    if dora:
        raise ModelError(f"{dora[0]} would get a DoRA adapter and another one, which is not a sum.",
                         hint="Merge them one after the other.")  # fmt: skip


def _shape(work: _Work, adapter: Adapter, name: str) -> tuple[int, ...]:
    given = adapter.replaced.get(name)
    return given.shape if given is not None else work.base[name].shape


def _check_shape(adapter: Adapter, name: str, change: Change, kind: ModuleKind, shape: tuple[int, ...]) -> None:
    if change.a is None or change.b is None:
        return
    out, inner = change.b.shape[0], change.a.shape[1]
    wanted = (out, inner) if kind == "linear" else (inner, out)
    if shape != wanted:
        raise ModelError(
            f"The {adapter.label} was made for a {name} of the shape {list(wanted)}, and the base has {list(shape)}.",
            hint="Name the base that the adapter was trained on (base_model_name_or_path in its config).",
        )


def _add_replaced(work: _Work, skeleton: Skeleton, adapter: Adapter, *, alone: bool) -> None:
    vocabulary = {skeleton.embedding, skeleton.head}
    for name, tensor in adapter.replaced.items():
        base = work.base.get(name)
        if base is None:
            raise ModelError(
                f"The {adapter.label} contains {name}, which the base model does not have.",
                hint="Name the base that the adapter was trained on (base_model_name_or_path in its config).",
            )
        if tensor.shape[1:] != base.shape[1:] or (name not in vocabulary and tensor.shape != base.shape):
            raise ModelError(
                f"The {adapter.label} contains {name} of shape {list(tensor.shape)}; the base has {list(base.shape)}."
            )
        if tensor.dtype not in FLOATS:
            raise ModelError(f"The {adapter.label} contains {name} as {tensor.dtype}.")
        if not alone or adapter.weight != 1.0:
            raise ModelError(
                f"The {adapter.label} contains a complete {name}, which can be neither weighted nor added to "
                "another adapter.",
                hint="Merge it on its own, with weight 1.",
            )
        work.replaced[name] = tensor


def _untie(work: _Work, skeleton: Skeleton, adapters: Sequence[Adapter]) -> tuple[list[Piece], bool]:
    """Untie a head from its embeddings if the adapter changes only one of them, or each separately.

    A layer that is fully trained is a copy from then on, and the other one stays unchanged; embeddings that were saved
    because their vocabulary grew are still tied to the head.
    """
    extra: list[Piece] = []
    untied = False
    whole = {layer for each in adapters if not each.config.get("ensure_weight_tying") for layer in each.saved_whole}
    stored = set(work.names.values())
    for name, other in skeleton.tied.items():
        if not (_named(name, whole) or _named(other, whole) or name in work.parts or other in work.parts):
            found = work.replaced.get(other) or work.replaced.get(name)
            if found is not None:
                work.replaced |= {name: found, other: found}
            continue
        untied = True
        extra += [_piece(work, each, work.base[each], called=each) for each in (name, other) if each not in stored]
    return extra, untied


def _named(tensor: str, layers: set[str]) -> bool:
    module = tensor.rpartition(".")[0]
    return any(module == layer or module.endswith(f".{layer}") for layer in layers)


def _of(work: _Work, file: TensorFile) -> list[tuple[str, Tensor]]:
    return [(work.names[tensor.name], tensor) for tensor in file.tensors]


def _piece(work: _Work, name: str, tensor: Tensor, *, called: str | None = None) -> Piece:
    source = work.replaced.get(name, tensor)
    parts = tuple(work.parts.get(name, ()))
    if parts and tensor.dtype not in FLOATS:
        raise ModelError(
            f"The base model's {tensor.name} is stored as {tensor.dtype}, which cannot be added to.",
            hint="Name the base in bf16, fp16 or fp32, not a quantized copy of it.",
        )
    dtype = work.dtype if work.dtype is not None and tensor.dtype in FLOATS else tensor.dtype
    return Piece(called or tensor.name, source, dtype, parts)


def _rows(work: _Work, skeleton: Skeleton) -> int:
    """Return the number of rows of embeddings and head, which must agree."""

    def rows(name: str) -> int:
        return (work.replaced.get(name) or work.base[name]).shape[0]  # fmt: skip

    embedding, head = skeleton.embedding, skeleton.head
    if head is not None and head in work.base and rows(head) != rows(embedding):
        raise ModelError(
            f"The adapter's vocabulary has {rows(embedding)} tokens in {embedding} and {rows(head)} in {head}.",
            hint="Save both with the adapter: `save_embedding_layers=True`, or both in `modules_to_save`.",
        )
    return rows(embedding)
