"""From a source of the spec to its rows, as a stream."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tunefleet.errors import DataError
from tunefleet.spec import DataSource
from tunefleet.spec.tasks.data_task import SourceSpec
from tunefleet.workloads.data.dataset_source import HubSet, Place
from tunefleet.workloads.data.streams import Reader
from tunefleet.workloads.data_pipeline.row_types import Row

_BLOCK_ROWS = 1000
_SLICED = re.compile(r"\[")
OnBadRow = Any
"""Called with the number and the error of an unreadable row."""


class Source:
    """The rows of one source.

    Raises:
        DataError: If it does not exist, or is of an unknown format.
    """

    def __init__(self, spec: SourceSpec, index: int, inputs: Mapping[str, str], workspace: Path) -> None:
        self._spec = spec
        self._index = index
        self._source = _chosen(spec.at(index), inputs)
        on_hub = HubSet(spec.config_name, spec.revision) if self._source.kind == "hub" else None
        self._place = Place(self._source.value, inputs.get(self._source.pointer), workspace, on_hub)

    @property
    def name(self) -> str:
        """Name of the source in messages."""
        return self._spec.name or self._source.value or f"sources.{self._index}"

    @property
    def is_here(self) -> bool:
        """Whether its rows are on this machine, so that nothing is downloaded first."""
        return self._place.on_disk or self._source.kind == "inline"

    def rows(self, on_bad: OnBadRow) -> Iterator[Row]:
        """Yield the rows.

        Args:
            on_bad: Called with the number of an unreadable row, from 1, and the error; may raise it.

        Raises:
            DataError: If the data is malformed.
            UnreachableError: If it is on the Hub that does not respond.
        """
        found = enumerate(self._values(on_bad), 1)
        for number, values in itertools.islice(found, self._spec.max_samples):
            try:
                plain = _plain(values, number, self.name)
            except DataError as error:
                on_bad(number, error)
                continue
            yield Row(plain, self._index, number)

    def _values(self, on_bad: OnBadRow) -> Iterator[Mapping[str, Any]]:
        if self._source.kind == "inline":
            return iter(self._spec.rows or ())
        local = Path(self._place.local or self._source.value)
        # A table of the Hub's cache is memory-mapped; a slice needs the number of rows.
        if _SLICED.search(self._spec.split) or not self._place.on_disk or local.suffix.lower() == ".json":
            return iter(self._place.read(self._spec.split, self._spec.max_samples)[0])
        return _streamed(self._place.stream(self._spec.split)[0], on_bad)


def _streamed(reader: Reader, on_bad: OnBadRow) -> Iterator[Mapping[str, Any]]:
    mark, number = None, 0
    while True:
        block = reader.read(mark, _BLOCK_ROWS)
        for index in range(block.size):
            number += 1
            try:
                row = block.row(index)
            except DataError as error:
                on_bad(number, error)
                continue
            yield row
        if block.after is None:
            return
        mark = block.after


def _plain(values: Mapping[str, Any], number: int, name: str) -> dict[str, Any]:
    """Return a row as JSON values, so that later steps do not depend on the source format."""
    try:
        # A round trip through JSON converts NumPy values and rejects everything else.
        plain: dict[str, Any] = orjson.loads(orjson.dumps(dict(values), option=orjson.OPT_SERIALIZE_NUMPY))
    except (TypeError, ValueError) as error:
        large = "64-bit" in str(error)
        raise DataError(
            f"Row {number} of {name} holds a value that JSON cannot represent: {error}.",
            hint="Write the number as a text." if large else "Images and bytes are not supported.",
        ) from None
    # JSON has neither NaN nor infinity, and orjson silently writes null for them.
    for column, value in values.items():
        if not _finite(value):
            raise DataError(
                f"Row {number} of {name} holds a number in {column!r} that is not finite (NaN or infinity).",
                hint="Write null for missing values; `on_bad: drop` skips and counts such rows.",
            )
    return plain


def _finite(value: Any) -> bool:
    if isinstance(value, float | np.floating):
        return math.isfinite(value)
    if isinstance(value, np.ndarray):
        return value.dtype.kind != "f" or bool(np.isfinite(value).all())
    if isinstance(value, Mapping):
        return all(_finite(each) for each in value.values())
    return not isinstance(value, list | tuple) or all(_finite(each) for each in value)


def _chosen(places: tuple[DataSource, ...], inputs: Mapping[str, str]) -> DataSource:
    return next((each for each in places if each.pointer in inputs), places[0])
