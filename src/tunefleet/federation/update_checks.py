"""Value checks of an adapter: finiteness, norms and digests."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tunefleet.errors import AdapterRefused
from tunefleet.federation.adapter import AdapterFile
from tunefleet.federation.floats import STORED, Buffers, Wide, widen
from tunefleet.federation.header import FLOATS, TensorInfo, write_header
from tunefleet.federation.layers import Layer
from tunefleet.federation.safetensors_writer import METADATA

# Values per block: one megabyte of float32.
_BLOCK: Final = 1 << 18
# Sums of squares below this may have lost terms that underflow in float32.
_SMALLEST_SQUARE: Final = 1e-30


def values_digest(file: AdapterFile, known: str | None = None) -> str:
    """Return a digest of names, types, shapes and values, independent of file order and metadata.

    It is the SHA-256 of the file as safetensors writes it for PEFT, so such a file's own digest.

    Args:
        known: The SHA-256 of the file, if known.
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
        AdapterRefused: If a value is not finite; the message names tensor and position.
    """
    tensor = file.tensors[name]
    digest = hashlib.sha256(f"{name}\0{tensor.dtype}\0{tensor.shape}\0".encode())
    for start, stored in _blocks(file, tensor):
        digest.update(stored.data.cast("B"))
        _refuse_infinite(name, tensor, start, stored)
    return digest.hexdigest()


def check_finite(file: AdapterFile, name: str) -> None:
    """Refuse a tensor with values that are not finite; raises as `tensor_digest` does."""
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
        hint="The training run diverged. Continue from the last global version.",
        tensor=name,
    )


def product_norm(file: AdapterFile, layer: Layer, buffers: Buffers) -> float:
    """Return the Frobenius norm of a layer's update scale · B · A without computing the product.

    ‖B A‖² = tr((Bᵀ B)(A Aᵀ)), two matrices of rank × rank. Blocks are computed in float32 and summed in float64; if a
    square overflows or underflows, everything is computed in float64.

    Raises:
        AdapterRefused: As `tensor_digest`.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        grams = _grams(file, layer, buffers)
        names = (layer.b, layer.a)
        if not all(_is_exact(file, name, gram) for name, gram in zip(names, grams, strict=True)):
            grams = _grams(file, layer, buffers, wide=True)
    for name, gram in zip(names, grams, strict=True):
        # The square of a finite float32 is finite in float64, so only infinities and NaN of the file show here.
        if not np.isfinite(np.diag(gram)).all():
            check_finite(file, name)
    return layer.scale * math.sqrt(max(float(np.vdot(*grams)), 0.0))


def _is_exact(file: AdapterFile, name: str, gram: Wide) -> bool:
    """Return whether no square of a factor overflows or underflows in float32."""
    squares = np.diag(gram)
    if not np.isfinite(gram).all():
        return False
    if (squares >= _SMALLEST_SQUARE).all():
        return True
    # A factor that is all zeros, such as an untrained B, has no square that could underflow.
    return not squares.any() and not any(stored.any() for _, stored in _blocks(file, file.tensors[name]))


def _grams(file: AdapterFile, layer: Layer, buffers: Buffers, *, wide: bool = False) -> tuple[Wide, Wide]:
    """Return Bᵀ B and A Aᵀ; blocks are computed in float32, or with `wide` in float64."""
    of_b, of_a = np.zeros((layer.rank, layer.rank)), np.zeros((layer.rank, layer.rank))
    step = max(1, _BLOCK // layer.rank)
    for start in range(0, layer.rows, step):
        part = buffers.floats("factor", min(step, layer.rows - start), layer.rank)
        file.read(file.tensors[layer.b], start * layer.rank, part)
        block = buffers.wide(part) if wide else part
        of_b += block.T @ block
    for start in range(0, layer.columns, step):
        part = buffers.floats("factor", layer.rank, min(step, layer.columns - start))
        file.columns(file.tensors[layer.a], start, part)
        block = buffers.wide(part) if wide else part
        of_a += block @ block.T
    return of_b, of_a
