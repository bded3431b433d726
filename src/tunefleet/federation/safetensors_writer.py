"""Write an adapter block by block: the file has its full length from the start, and threads fill it in any order."""

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

# What Hugging Face's loaders look for.
METADATA: Final[Mapping[str, str]] = {"format": "pt"}


class AdapterWriter:
    """A safetensors file that is being written; as a context manager it appears whole or not at all.

    Args:
        path: The file; an older one is replaced at the end.
        tensors: Type and shape of each tensor, in the order of the values.
        metadata: Free words.

    Attributes:
        tensors: Where each tensor's values stand.
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
            self._give_up()  # the disk is full, and nobody enters what was not made
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
        """Write values in the tensor's type.

        Args:
            start: First value, counted along the flattened tensor.
            values: What comes there, without gaps.

        Raises:
            AdapterRefused: If a value is not finite, or too large for the type.
        """
        tensor = self.tensors[name]
        if not holds(values, tensor.dtype):
            raise AdapterRefused(
                f"The tensor {name!r} would have values that {tensor.dtype} cannot hold.",
                hint="Ask for float32, clip the norms, or look for an update with huge values.",
                tensor=name,
            )
        self.raw(name, start, narrow(values, tensor.dtype))

    def raw(self, name: str, start: int, stored: npt.NDArray[Any]) -> None:
        """Write values that have the tensor's type already.

        Args:
            start: First value, counted along the flattened tensor.
            stored: What comes there, as it lies in the file, without gaps.
        """
        view = stored.data.cast("B") if stored.size else stored.data[:0]
        self._put(view, self.tensors[name].start + start * stored.itemsize)

    def columns(self, name: str, start: int, values: Array) -> None:
        """Write some columns of a matrix.

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
    """Write arrays that are in memory.

    Args:
        path: The file; an older one is replaced.
        values: float32 by name.
        dtype: `F32`, `BF16` or `F16`.
        metadata: Free words.

    Raises:
        AdapterRefused: If a value is not finite, or too large for the type.
    """
    with AdapterWriter(path, {name: (dtype, each.shape) for name, each in values.items()}, metadata) as written:
        for name, each in values.items():
            written.write(name, 0, each)
