"""Look through one adapter once it has arrived: are all values finite, how long is the update, what is its digest."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tunefleet.errors import AdapterRefused
from tunefleet.federation.adapter import AdapterFile
from tunefleet.federation.floats import STORED, Room, Wide, widen
from tunefleet.federation.header import FLOATS, TensorInfo, write_header
from tunefleet.federation.layers import Layer
from tunefleet.federation.safetensors_writer import METADATA

# Values that are looked at together: a megabyte of float32.
_BLOCK: Final = 1 << 18
# Sums of squares below this may have lost some that float32 does not have.
_SMALLEST_SQUARE: Final = 1e-30


def values_digest(file: AdapterFile, known: str | None = None) -> str:
    """Return a digest of names, types, shapes and values, whatever the order in the file and its free words are.

    It is the sha256 of the file as safetensors would write it for PEFT: of one that was written so, its own.

    Args:
        known: The sha256 of the file, if somebody has reckoned it already.
    """
    names = sorted(file.tensors, key=lambda name: (-FLOATS[file.tensors[name].dtype], name))
    head, _ = write_header({name: (file.tensors[name].dtype, file.tensors[name].shape) for name in names}, METADATA)
    if known is not None and file.begins_with(head):
        return known
    digest = hashlib.sha256(head)
    for name in names:
        for _, stored in _blocks(file, file.tensors[name]):
            digest.update(stored.data.cast("B"))
    return digest.hexdigest()


def tensor_digest(file: AdapterFile, name: str) -> str:
    """Return a digest of one tensor's type, shape and values.

    Raises:
        AdapterRefused: If a value is not finite; it names the tensor, and the value's place.
    """
    tensor = file.tensors[name]
    digest = hashlib.sha256(f"{name}\0{tensor.dtype}\0{tensor.shape}\0".encode())
    for start, stored in _blocks(file, tensor):
        digest.update(stored.data.cast("B"))
        _refuse_infinite(name, tensor, start, stored)
    return digest.hexdigest()


def check_finite(file: AdapterFile, name: str) -> None:
    """Refuse a tensor with a value that is not finite; raises as `tensor_digest` does."""
    tensor = file.tensors[name]
    for start, stored in _blocks(file, tensor):
        _refuse_infinite(name, tensor, start, stored)


def _blocks(file: AdapterFile, tensor: TensorInfo) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    buffer = np.empty(min(_BLOCK, tensor.size), STORED[tensor.dtype])
    for start in range(0, tensor.size, _BLOCK):
        part = buffer[: tensor.size - start]
        file.stored(tensor, start, part)
        yield start, part


def _refuse_infinite(name: str, tensor: TensorInfo, start: int, stored: npt.NDArray[Any]) -> None:
    values = stored
    if tensor.dtype == "BF16":
        values = np.empty(stored.size, np.float32)
        widen(stored, tensor.dtype, values)
    fine = np.isfinite(values)
    if fine.all():
        return
    first = int(np.argmin(fine))
    place = [int(each) for each in np.unravel_index(start + first, tensor.shape)]
    raise AdapterRefused(
        f"The tensor {name!r} is not finite: the value at {place} is {float(values[first])}.",
        hint="The training has diverged; go on from the last global version.",
        tensor=name,
    )


def product_norm(file: AdapterFile, layer: Layer, room: Room) -> float:
    """Return the Frobenius norm of a layer's update, scale · B · A, which is never formed.

    ‖B A‖² = tr((Bᵀ B)(A Aᵀ)), two matrices of rank × rank. Blocks of them are reckoned in float32 and added up in
    float64; where a square does not fit, or is too small to be seen, all of it is done in float64.

    Raises:
        AdapterRefused: As `tensor_digest`.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        grams = _grams(file, layer, room)
        names = (layer.b, layer.a)
        if not all(_is_exact(file, name, gram) for name, gram in zip(names, grams, strict=True)):
            grams = _grams(file, layer, room, wide=True)
    for name, gram in zip(names, grams, strict=True):
        # A finite float32 has a finite square in float64, so that only what is not finite shows here.
        if not np.isfinite(np.diag(gram)).all():
            check_finite(file, name)
    return layer.scale * math.sqrt(max(float(np.vdot(*grams)), 0.0))


def _is_exact(file: AdapterFile, name: str, gram: Wide) -> bool:
    """Whether every square that a factor's products are made of has a place in float32."""
    squares = np.diag(gram)
    if not np.isfinite(gram).all():
        return False
    if (squares >= _SMALLEST_SQUARE).all():
        return True
    # The factor that begins as zeros has no square that could be lost.
    return not squares.any() and not any(stored.any() for _, stored in _blocks(file, file.tensors[name]))


def _grams(file: AdapterFile, layer: Layer, room: Room, *, wide: bool = False) -> tuple[Wide, Wide]:
    """Return Bᵀ B and A Aᵀ; their blocks are reckoned in float32, or `wide` in float64."""
    of_b, of_a = np.zeros((layer.rank, layer.rank)), np.zeros((layer.rank, layer.rank))
    step = max(1, _BLOCK // layer.rank)
    for start in range(0, layer.rows, step):
        part = room.floats("factor", min(step, layer.rows - start), layer.rank)
        file.read(file.tensors[layer.b], start * layer.rank, part)
        block = room.wide(part) if wide else part
        of_b += block.T @ block
    for start in range(0, layer.columns, step):
        part = room.floats("factor", layer.rank, min(step, layer.columns - start))
        file.columns(file.tensors[layer.a], start, part)
        block = room.wide(part) if wide else part
        of_a += block @ block.T
    return of_b, of_a
