"""Conversion between stored numbers (bfloat16, float16) and float32 for computation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Wide = npt.NDArray[np.float64]
STORED: Final[Mapping[str, np.dtype[Any]]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I8": np.dtype("i1"),
}
"""Storage types; NumPy has no bfloat16, so its values are the upper halves of float32."""
# The largest number of each type.
LARGEST: Final[Mapping[str, float]] = {
    "F32": float(np.finfo(np.float32).max),
    "F16": float(np.finfo(np.float16).max),
    # The largest bfloat16 plus half a unit in the last place: larger values would round to infinity.
    "BF16": float(np.uint32(0x7F7F7FFF).view(np.float32)),
}


def widen(stored: npt.NDArray[Any], dtype: str, out: Array) -> None:
    """Convert stored values to float32.

    Args:
        stored: Values in the stored type.
        out: float32 output array of the same size.
    """
    if dtype == "BF16":
        np.left_shift(stored, 16, out=out.view(np.uint32), dtype=np.uint32, casting="unsafe")
    else:
        np.copyto(out, stored, casting="same_kind")


def narrow(values: Array, dtype: str) -> npt.NDArray[Any]:
    """Convert float32 to the stored type, rounding to nearest, ties to even.

    Args:
        values: Finite numbers within the type's range.
    """
    if dtype == "F32":
        return np.ascontiguousarray(values, dtype="<f4")
    if dtype == "F16":
        return values.astype("<f2")
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")


def holds(values: Array, dtype: str) -> bool:
    """Return whether all values are finite and within the type's range."""
    if not values.size:
        return True
    most = LARGEST[dtype]
    # max and min propagate NaN, and any comparison with NaN is false.
    return bool(values.max() <= most) and bool(values.min() >= -most)


class Buffers:
    """Reusable buffers of one thread: faulting in new pages costs as much as the arithmetic on them."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, type], npt.NDArray[Any]] = {}

    def floats(self, name: str, rows: int, columns: int) -> Array:
        """Return an uninitialized float32 matrix, valid until the next call with this name."""
        return self._matrix(name, rows, columns, np.float32)

    def wide(self, values: Array) -> Wide:
        """Return values as float64, valid until the next call."""
        rows, columns = values.shape
        found: Wide = self._matrix("wide", rows, columns, np.float64)
        np.copyto(found, values)
        return found

    def _matrix(self, name: str, rows: int, columns: int, dtype: type) -> npt.NDArray[Any]:
        kept = self._kept.get((name, dtype))
        if kept is None or kept.size < rows * columns:
            # Free the old buffer first: both together would double the memory.
            self._kept.pop((name, dtype), None)
            del kept
            kept = self._kept[name, dtype] = np.empty(rows * columns, dtype)
        return kept[: rows * columns].reshape(rows, columns)
