"""Finished vectors on disk, so that a relaunch continues.

<folder>/vectors.f32    the vectors, concatenated, float32
<folder>/about.json     fingerprint of texts and options; another one discards the vectors
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tunefleet.trainer_control.files import read_json, write_json
from tunefleet.workloads.embedding.encoder import Encoder, Vectors


def fingerprint(texts: Iterable[str], *about: Any) -> str:
    """Return a digest of texts and of how they are processed."""
    digest = hashlib.sha256(orjson.dumps(about, option=orjson.OPT_SORT_KEYS))
    for text in texts:
        digest.update(b"\0" + text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


class VectorCache:
    """Vectors of one run, in the order of the texts."""

    def __init__(self, folder: Path, dimension: int, of: str) -> None:
        self._file = folder / "vectors.f32"
        self._row_bytes = 4 * dimension
        self._dimension = dimension
        about = {"fingerprint": of, "dimension": dimension}
        if read_json(folder / "about.json") != about:
            folder.mkdir(parents=True, exist_ok=True)
            self._file.unlink(missing_ok=True)
            write_json(folder / "about.json", about, sync=True)
        self._cut_torn_tail()

    @property
    def name(self) -> str:
        """The file's name."""
        return self._file.name

    @property
    def count(self) -> int:
        """Number of vectors."""
        return self._file.stat().st_size // self._row_bytes

    def append(self, vectors: Vectors) -> None:
        """Append vectors, durably.

        Raises:
            OSError: If the disk is full.
        """
        with self._file.open("ab") as file:
            file.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())
            file.flush()
            # The next launch trusts the size of the file.
            os.fsync(file.fileno())

    def read(self) -> Vectors:
        """Return all vectors, memory-mapped."""
        if self.count == 0:
            return np.empty((0, self._dimension), dtype=np.float32)
        found: Vectors = np.memmap(self._file, dtype="<f4", mode="r", shape=(self.count, self._dimension))
        return found

    def drop(self) -> None:
        """Delete the vectors, after the result is written."""
        self._file.unlink(missing_ok=True)

    def _cut_torn_tail(self) -> None:
        # A killed process may have written a part of a row.
        size = self._file.stat().st_size if self._file.exists() else 0
        with self._file.open("ab") as file:
            file.truncate(size - size % self._row_bytes)


def encoded(kept: VectorCache, texts: Sequence[str], at_once: int, encoder: Encoder, report: Any) -> Vectors:
    """Return the vectors of all texts; new ones are stored batch by batch."""
    # Usage counts every text, also those that an earlier launch embedded.
    encoder.count(texts[: kept.count])
    for begin in range(kept.count, len(texts), at_once):
        report(begin)
        kept.append(encoder.encode(texts[begin : begin + at_once]))
    report(len(texts))
    return kept.read()
