"""Numbers of a file and numbers that are reckoned with: bfloat16 and float16 in and out, float32 inside."""

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
"""How the values of a type lie in a file; NumPy has no bfloat16, so those are the upper halves of float32."""
# The largest number that each type can hold.
LARGEST: Final[Mapping[str, float]] = {
    "F32": float(np.finfo(np.float32).max),
    "F16": float(np.finfo(np.float16).max),
    # The largest bfloat16, and half of its last place: what is not less would be rounded to infinity.
    "BF16": float(np.uint32(0x7F7F7FFF).view(np.float32)),
}


def widen(stored: npt.NDArray[Any], dtype: str, out: Array) -> None:
    """Turn stored values into float32.

    Args:
        stored: Values as they lie in the file.
        out: As many float32; they are overwritten.
    """
    if dtype == "BF16":
        np.left_shift(stored, 16, out=out.view(np.uint32), dtype=np.uint32, casting="unsafe")
    else:
        np.copyto(out, stored, casting="same_kind")


def narrow(values: Array, dtype: str) -> npt.NDArray[Any]:
    """Turn float32 into values to be stored, rounded to the nearest, ties to even.

    Args:
        values: Finite numbers that the type can hold.
    """
    if dtype == "F32":
        return np.ascontiguousarray(values, dtype="<f4")
    if dtype == "F16":
        return values.astype("<f2")
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")


def holds(values: Array, dtype: str) -> bool:
    """Whether all values are finite and the type can hold them."""
    if not values.size:
        return True
    most = LARGEST[dtype]
    # A comparison with NaN is false, and minimum and maximum hand NaN on.
    return bool(values.max() <= most) and bool(values.min() >= -most)


class Room:
    """Memory that one thread works in, layer after layer: pages that are new cost as much as the arithmetic on them."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, type], npt.NDArray[Any]] = {}

    def floats(self, name: str, rows: int, columns: int) -> Array:
        """Return a matrix of float32 with any values; it is good until this name is asked for again."""
        return self._matrix(name, rows, columns, np.float32)

    def wide(self, values: Array) -> Wide:
        """Return values as float64; they are good until the next call."""
        rows, columns = values.shape
        found: Wide = self._matrix("wide", rows, columns, np.float64)
        np.copyto(found, values)
        return found

    def _matrix(self, name: str, rows: int, columns: int, dtype: type) -> npt.NDArray[Any]:
        kept = self._kept.get((name, dtype))
        if kept is None or kept.size < rows * columns:
            # The old one first: both at once would be twice as much.
            self._kept.pop((name, dtype), None)
            del kept
            kept = self._kept[name, dtype] = np.empty(rows * columns, dtype)
        return kept[: rows * columns].reshape(rows, columns)
