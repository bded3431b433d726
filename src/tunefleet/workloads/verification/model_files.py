"""Integrity of a model's files: index against files, headers against sizes; no weight is read."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tunefleet.errors import ModelError
from tunefleet.workloads.merging.safetensors_reader import Tensor, TensorFile, model_files

_INDEX: Final = "model.safetensors.index.json"
_CONFIG: Final = "config.json"
_BITS: Final = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "I8": 8, "U8": 8, "BOOL": 8,
}  # fmt: skip
"""Bits per value of a dtype; for any other dtype only the position is checked."""
_FETCH: Final = "Download it again: delete its folder in the Hub's cache, or copy the missing files."


@dataclass(frozen=True, slots=True)
class Files:
    """The weights of a model, from the file headers."""

    files: tuple[TensorFile, ...]
    tensors: dict[str, Tensor]

    @property
    def size_bytes(self) -> int:
        """Size of all weights."""
        return sum(each.size_bytes for each in self.tensors.values())

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(math.prod(each.shape) for each in self.tensors.values())

    @property
    def dtypes(self) -> list[str]:
        """The dtypes, by their safetensors names."""
        return sorted({each.dtype for each in self.tensors.values()})


def check(folder: Path) -> Files:
    """Check the files of a model.

    Raises:
        ModelError: If a file is missing, truncated, or does not match the index.
    """
    _json(folder / _CONFIG)
    files = model_files(folder)
    tensors: dict[str, Tensor] = {}
    for file in files:
        _check_places(file)
        for tensor in file.tensors:
            if tensor.name in tensors:
                other = tensors[tensor.name].path.name
                raise ModelError(f"Both {other} and {file.path.name} hold {tensor.name}.", hint=_FETCH)
            tensors[tensor.name] = tensor
    if not tensors:
        raise ModelError(f"The files of the model contain no weights: {files[0].path.name} is empty.", hint=_FETCH)
    if (folder / _INDEX).is_file():
        _check_index(_json(folder / _INDEX), tensors)
    return Files(tuple(files), tensors)


def _check_places(file: TensorFile) -> None:
    """Check that each tensor has the size of its shape, and that there are no gaps or overlaps."""
    # safetensors requires the tensors to fill the data section without gaps.
    at = len(file.header)
    for tensor in file.tensors:
        bits = _BITS.get(tensor.dtype)
        if bits is not None and math.prod(tensor.shape) * bits != tensor.size_bytes * 8:
            raise ModelError(
                f"{file.path.name} has {tensor.size_bytes} bytes for {tensor.name}, {tensor.dtype} of the shape "
                f"{list(tensor.shape)}.",
                hint=_FETCH,
            )
        if tensor.offset != at:
            raise ModelError(f"{file.path.name} is damaged: {tensor.name} is at the wrong offset.", hint=_FETCH)
        at += tensor.size_bytes


def _check_index(index: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    placed: dict[str, str] = index["weight_map"]
    for name, file in sorted(placed.items()):
        if name not in tensors:
            raise ModelError(f"{_INDEX} says that {file} contains {name}, which is in no file.", hint=_FETCH)
        if tensors[name].path.name != file:
            raise ModelError(
                f"{_INDEX} says that {file} contains {name}, but {tensors[name].path.name} does.", hint=_FETCH
            )
    unknown = sorted(set(tensors) - set(placed))
    if unknown:
        where = tensors[unknown[0]].path.name
        raise ModelError(f"{where} holds {unknown[0]}, which is not in {_INDEX}.", hint=_FETCH)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"The model's {path.name} cannot be read: {error}", hint=_FETCH) from error
    if not isinstance(found, dict):
        raise ModelError(f"The model's {path.name} does not hold a JSON object.", hint=_FETCH)
    return found


def embedding_rows(weights: Files, names: Sequence[str]) -> int | None:
    """Return the number of rows of the stored embeddings; None if the files use another name."""
    found = next((weights.tensors[name] for name in names if name in weights.tensors), None)
    return None if found is None else found.rows
