"""Memory that is used again and again, in place of a new array for each block and layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tunefleet.federation.floats import Array, Wide


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
