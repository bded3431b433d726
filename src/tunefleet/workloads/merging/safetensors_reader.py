"""Access to tensors in place: the header of a safetensors file, and blocks of rows without loading the rest."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from tunefleet.errors import ModelError

# Size of the block of a tensor that is in memory, in its stored dtype.
BLOCK_BYTES: Final = 4 << 20
FLOATS: Final = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_MAX_HEADER_BYTES: Final = 100 << 20
_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in a file.

    Args:
        dtype: The safetensors name, such as `BF16`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    size_bytes: int

    @property
    def rows(self) -> int:
        """Length of the first dimension; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.size_bytes // self.rows if self.rows else 0

    def blocks(self) -> Iterator[tuple[int, int, bytearray]]:
        """Yield `(first row, row after the last, bytes)`, a few megabytes at a time.

        Raises:
            ModelError: If the file ends too early.
        """
        step = max(1, BLOCK_BYTES // max(1, self.row_bytes))
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.offset)
            for first in range(0, self.rows, step):
                last = min(first + step, self.rows)
                data = bytearray((last - first) * self.row_bytes)
                if _fill(file, data) != len(data):
                    raise ModelError(f"The file {self.path.name} ends in the middle of {self.name}.")
                yield first, last, data

    def load(self) -> torch.Tensor:
        """Return the complete tensor in float32.

        Raises:
            ModelError: If it does not hold floating-point numbers.
        """
        data = b"".join(bytes(block) for _, _, block in self.blocks())
        return as_floats(bytearray(data), self).reshape(self.shape)


def as_floats(data: bytearray, tensor: Tensor) -> torch.Tensor:
    """Return bytes of a tensor as a flat float32 tensor."""
    kind = FLOATS.get(tensor.dtype)
    if kind is None:
        raise ModelError(
            f"The tensor {tensor.name} is stored as {tensor.dtype}, which cannot be added to.",
            hint="Name the base model in bf16, fp16 or fp32, not a quantized copy of it.",
        )
    return torch.frombuffer(data, dtype=kind).to(torch.float32)


@dataclass(frozen=True, slots=True)
class TensorFile:
    """A safetensors file.

    Args:
        header: Its first bytes, up to the data.
    """

    path: Path
    header: bytes
    metadata: dict[str, str]
    tensors: tuple[Tensor, ...]


def open_file(path: Path) -> TensorFile:
    """Read the header of a safetensors file."""
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = int.from_bytes(start, "little")
            # A damaged length must not allocate gigabytes.
            if len(start) < 8 or length > min(size_bytes, _MAX_HEADER_BYTES):
                raise ModelError(f"{path.name} is not a safetensors file, or is incomplete.")
            header = file.read(length)
        found: dict[str, Any] = json.loads(header)
        metadata = found.pop("__metadata__", None) or {}
        begin = 8 + length
        tensors = sorted(
            (_tensor(path, name, entry, begin) for name, entry in found.items()), key=lambda each: each.offset
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path.name} cannot be read as a safetensors file: {error}") from error
    end = max((each.offset + each.size_bytes for each in tensors), default=begin)
    if end != size_bytes:
        raise ModelError(f"{path.name} has {size_bytes} bytes instead of {end}: it is incomplete.")
    return TensorFile(path, start + header, metadata, tuple(tensors))


def _tensor(path: Path, name: str, entry: Any, begin: int) -> Tensor:
    first, last = entry["data_offsets"]
    shape = tuple(int(size) for size in entry["shape"])
    return Tensor(name, str(entry["dtype"]), shape, path, begin + int(first), int(last) - int(first))


def model_files(folder: Path) -> list[TensorFile]:
    """Open the weights of a model folder, in the order of their names."""
    index, single = folder / _INDEX, folder / _SINGLE
    if index.is_file():
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    elif single.is_file():
        names = [_SINGLE]
    else:
        pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        raise ModelError(
            f"The base model has no {_SINGLE}" + (f", only {', '.join(pickled[:3])}." if pickled else "."),
            hint="Load it once and write it with `save_pretrained`, which writes safetensors.",
        )
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelError(f"The base model's index names {missing[0]}, which does not exist.")
    return [open_file(folder / name) for name in names]


def is_weights(name: str) -> bool:
    """Return whether a file of a model folder holds weights, or is an index of weight files."""
    endings = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ckpt")
    return name.endswith((*endings, ".safetensors.index.json", ".bin.index.json"))


def header_of(tensors: list[tuple[str, str, tuple[int, ...], int]], metadata: dict[str, str]) -> bytes:
    """Return the header of a safetensors file.

    Args:
        tensors: Name, dtype, shape and size in bytes of each, in file order.
    """
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    at = 0
    for name, dtype, shape, size_bytes in tensors:
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size_bytes]}
        at += size_bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    # safetensors aligns the data to 8 bytes.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the size in bytes of a floating-point tensor."""
    return math.prod(shape) * FLOATS[dtype].itemsize


def _fill(file: Any, data: bytearray) -> int:
    view, done = memoryview(data), 0
    while done < len(data):
        # Reads into the existing buffer, without a copy.
        count = os.readv(file.fileno(), [view[done:]])
        if count == 0:
            break
        done += count
    return done
