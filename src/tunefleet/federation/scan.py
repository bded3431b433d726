"""Look through one adapter once it has arrived: are all values finite, how long is the update, what is its digest."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from tunefleet.errors import AdapterRefused
from tunefleet.federation.adapter import AdapterFile
from tunefleet.federation.floats import STORED, Wide, widen
from tunefleet.federation.header import TensorInfo
from tunefleet.federation.layers import Layer

if TYPE_CHECKING:
    from hashlib import _Hash

_BLOCK: Final = 1 << 18
"""Values that are looked at together: a megabyte of float32."""


def values_digest(file: AdapterFile) -> str:
    """Return a digest of names, types, shapes and values, whatever the order in the file and its free words are.

    Raises:
        AdapterRefused: If a value is not finite; it names the tensor, and the value's place.
    """
    digest = hashlib.sha256()
    for name in sorted(file.tensors):
        _add(digest, file, name, file.tensors[name])
    return digest.hexdigest()


def tensor_digest(file: AdapterFile, name: str) -> str:
    """Return a digest of one tensor's type, shape and values.

    Raises:
        AdapterRefused: As `values_digest`.
    """
    digest = hashlib.sha256()
    _add(digest, file, name, file.tensors[name])
    return digest.hexdigest()


def _add(digest: _Hash, file: AdapterFile, name: str, tensor: TensorInfo) -> None:
    digest.update(f"{name}\0{tensor.dtype}\0{tensor.shape}\0".encode())
    for start, stored in _blocks(file, tensor):
        digest.update(stored.data.cast("B"))
        _check_finite(name, tensor, start, stored)


def _blocks(file: AdapterFile, tensor: TensorInfo) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    buffer = np.empty(min(_BLOCK, tensor.size), STORED[tensor.dtype])
    for start in range(0, tensor.size, _BLOCK):
        part = buffer[: tensor.size - start]
        file.stored(tensor, start, part)
        yield start, part


def _check_finite(name: str, tensor: TensorInfo, start: int, stored: npt.NDArray[Any]) -> None:
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


def product_norm(file: AdapterFile, layer: Layer) -> float:
    """Return the Frobenius norm of a layer's update, scale · B · A, which is never formed.

    ‖B A‖² = tr((Bᵀ B)(A Aᵀ)), two matrices of rank × rank.
    """
    squared = float(np.vdot(_gram_b(file, layer), _gram_a(file, layer)))
    return layer.scale * math.sqrt(max(squared, 0.0))


def _gram_b(file: AdapterFile, layer: Layer) -> Wide:
    gram = np.zeros((layer.rank, layer.rank))
    step = max(1, _BLOCK // layer.rank)
    for start in range(0, layer.rows, step):
        part = np.empty((min(step, layer.rows - start), layer.rank), np.float32)
        file.read(file.tensors[layer.b], start * layer.rank, part)
        wide = part.astype(np.float64)
        gram += wide.T @ wide
    return gram


def _gram_a(file: AdapterFile, layer: Layer) -> Wide:
    gram = np.zeros((layer.rank, layer.rank))
    step = max(1, _BLOCK // layer.rank)
    for start in range(0, layer.columns, step):
        part = np.empty((layer.rank, min(step, layer.columns - start)), np.float32)
        file.columns(file.tensors[layer.a], start, part)
        wide = part.astype(np.float64)
        gram += wide @ wide.T
    return gram
