"""Writes an adapter in blocks: the file has its full size from the start, and threads fill it in any order."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy.typing as npt

from tunefleet.errors import AdapterRefused
from tunefleet.federation.floats import Array, holds, narrow
from tunefleet.federation.header import write_header

# Required by Hugging Face's loaders.
METADATA: Final[Mapping[str, str]] = {"format": "pt"}


class AdapterWriter:
    """Writes a safetensors file; as a context manager the file appears completely or not at all.

    Args:
        path: Output file; replaced on exit if it exists.
        tensors: Type and shape of each tensor, in the order of the values.
        metadata: Free-form metadata.

    Attributes:
        tensors: Type, shape and offsets of each tensor.
    """

    def __init__(
        self,
        path: Path,
        tensors: Mapping[str, tuple[str, Sequence[int]]],
        metadata: Mapping[str, str] = METADATA,
    ) -> None:
        self.path = path
        self._part = path.with_name(f".{path.name}.part")
        head, self.tensors = write_header(tensors, metadata)
        self.size_bytes = max((tensor.end for tensor in self.tensors.values()), default=len(head))
        self._fd = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(self._fd, self.size_bytes)
            self._put(memoryview(head), 0)
        except OSError:
            self._give_up()  # the disk is full; `__exit__` does not run if the constructor fails
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._give_up()
            return
        os.close(self._fd)
        self._part.replace(self.path)

    def write(self, name: str, start: int, values: Array) -> None:
        """Write values, converted to the tensor's type.

        Args:
            start: Index of the first value in the flattened tensor.
            values: Contiguous float32 values.

        Raises:
            AdapterRefused: If a value is not finite, or too large for the type.
        """
        tensor = self.tensors[name]
        if not holds(values, tensor.dtype):
            raise AdapterRefused(
                f"The tensor {name!r} has values outside the range of {tensor.dtype}.",
                hint="Use float32, clip the norms, or look for an update with huge values.",
                tensor=name,
            )
        self.raw(name, start, narrow(values, tensor.dtype))

    def raw(self, name: str, start: int, stored: npt.NDArray[Any]) -> None:
        """Write values that are already in the tensor's type.

        Args:
            start: Index of the first value in the flattened tensor.
            stored: Contiguous values in the stored type.
        """
        view = stored.data.cast("B") if stored.size else stored.data[:0]
        self._put(view, self.tensors[name].start + start * stored.itemsize)

    def columns(self, name: str, start: int, values: Array) -> None:
        """Write columns of a matrix.

        Args:
            start: First column.
            values: All rows of these columns.

        Raises:
            AdapterRefused: As `write`.
        """
        width = self.tensors[name].shape[1]
        if values.shape[1] == width:
            self.write(name, 0, values)
            return
        for row, part in enumerate(values):
            self.write(name, row * width + start, part)

    def _put(self, view: memoryview, at: int) -> None:
        while view:
            count = os.pwrite(self._fd, view, at)
            view, at = view[count:], at + count

    def _give_up(self) -> None:
        os.close(self._fd)
        self._part.unlink(missing_ok=True)


def write_tensors(
    path: Path, values: Mapping[str, Array], *, dtype: str = "F32", metadata: Mapping[str, str] = METADATA
) -> None:
    """Write arrays from memory.

    Args:
        path: Output file; replaced if it exists.
        values: float32 arrays by name.
        dtype: `F32`, `BF16` or `F16`.
        metadata: Free-form metadata.

    Raises:
        AdapterRefused: If a value is not finite, or too large for the type.
    """
    with AdapterWriter(path, {name: (dtype, each.shape) for name, each in values.items()}, metadata) as written:
        for name, each in values.items():
            written.write(name, 0, each)
