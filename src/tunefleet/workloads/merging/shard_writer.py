"""Writes the merged model file by file, a few megabytes at a time; complete files are not written again.

.merge/<file>         a complete file of the merged model
.merge/<file>.json    its sources and digest; written last
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tunefleet.artifacts import hash_file
from tunefleet.errors import ModelError
from tunefleet.fsutil import write_file
from tunefleet.workloads.merging.plan import Part, Piece, Plan, Shard
from tunefleet.workloads.merging.safetensors_reader import FLOATS, Tensor, as_floats, header_of

# Called with the number of bytes just read.
Report = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Written:
    """A file of the merged model.

    Args:
        source_digest: sha256 of the base's file of that name; None if the base has none.
    """

    name: str
    digest: str
    size_bytes: int
    source_digest: str | None
    kept: bool = False


def write(plan: Plan, adapters: Sequence[str], folder: Path, report: Report) -> list[Written]:
    """Write all files; existing ones are verified by their digest and kept.

    Raises:
        ModelError: If a file of the base or of an adapter does not match its header.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [_shard(plan, shard, adapters, folder, report) for shard in plan.shards]


def _shard(plan: Plan, shard: Shard, adapters: Sequence[str], folder: Path, report: Report) -> Written:
    fingerprint = plan.fingerprint(shard, adapters)
    target, note = folder / shard.name, folder / f"{shard.name}.json"
    known = _known(target, note, fingerprint)
    if known is not None:
        report(sum(piece.source.size_bytes for piece in shard.pieces))
        return known
    # First: an old note must not vouch for the new file.
    note.unlink(missing_ok=True)
    partial = folder / f".{shard.name}.partial"
    with partial.open("wb") as file:
        made = _Writer(file.write, report).run(shard)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target)
    written = Written(shard.name, made.digest, made.size_bytes, made.source_digest)
    kept = {"fingerprint": fingerprint, "digest": made.digest, "source_digest": made.source_digest}
    write_file(note, json.dumps(kept).encode())
    return written


def _known(target: Path, note: Path, fingerprint: str) -> Written | None:
    try:
        stored: dict[str, Any] = json.loads(note.read_bytes())
    except (OSError, ValueError):
        return None
    if stored.get("fingerprint") != fingerprint or not target.is_file():
        return None
    digest, size_bytes = hash_file(target)
    if digest != stored.get("digest"):
        return None
    return Written(target.name, digest, size_bytes, stored.get("source_digest"), kept=True)


@dataclass(slots=True)
class _WrittenFile:
    digest: str
    size_bytes: int
    source_digest: str | None


class _Writer:
    """Writes one file."""

    def __init__(self, out: Callable[[bytes | bytearray | memoryview], Any], report: Report) -> None:
        self._out = out
        self._report = report
        self._digest = hashlib.sha256()
        self._source = hashlib.sha256()
        self._size_bytes = 0

    def run(self, shard: Shard) -> _WrittenFile:
        """Write the file."""
        metadata = shard.file.metadata if shard.file is not None else {}
        rows = [(piece.name, piece.dtype, piece.source.shape, piece.size_bytes) for piece in shard.pieces]
        self._put(header_of(rows, metadata))
        if shard.file is not None:
            self._source.update(shard.file.header)
        for piece in shard.pieces:
            own = shard.file is not None and piece.source.path == shard.file.path
            self._piece(piece, own=own)
            if shard.file is not None and not own:
                self._pass_over(next(each for each in shard.file.tensors if each.name == piece.name))
        source = self._source.hexdigest() if shard.file is not None else None
        return _WrittenFile(self._digest.hexdigest(), self._size_bytes, source)

    def _put(self, data: bytes | bytearray | memoryview) -> None:
        self._out(data)
        self._digest.update(data)
        self._size_bytes += len(data)

    def _pass_over(self, tensor: Tensor) -> None:
        """Hash a replaced tensor: the base's digest covers the complete file."""
        for _, _, data in tensor.blocks():
            self._source.update(data)

    def _piece(self, piece: Piece, *, own: bool) -> None:
        added = [_AdapterProduct(part) for part in piece.parts]
        for first, last, data in piece.source.blocks():
            if own:
                self._source.update(data)
            self._report(len(data))
            if piece.copied:
                self._put(data)
                continue
            # The sum is computed in float32 and rounded once.
            rows = as_floats(data, piece.source).reshape(last - first, -1)
            for each in added:
                rows = each.to(rows, first, last)
            self._put(_bytes_of(rows.to(FLOATS[piece.dtype]), piece.name))


class _AdapterProduct:
    """What one adapter adds, in float32, block by block."""

    def __init__(self, part: Part) -> None:
        change = part.change
        if change.a is None or change.b is None:
            raise ModelError("A factor of the adapter is missing.")
        self._a, self._b = change.a.load(), change.b.load()
        self._magnitude = None if change.magnitude is None else change.magnitude.load().reshape(-1)
        self._part = part

    def to(self, rows: torch.Tensor, first: int, last: int) -> torch.Tensor:
        """Return a block of rows with the adapter's product added."""
        if self._part.kind == "linear":
            rows = torch.addmm(rows, self._b[first:last], self._a, alpha=self._part.factor)
        else:
            # The tensor is transposed: a row of it is a column of the product.
            rows = torch.addmm(rows, self._a[:, first:last].T, self._b.T, alpha=self._part.factor)
        if self._magnitude is None:
            return rows
        return rows * (self._magnitude[first:last] / rows.norm(dim=1)).unsqueeze(1)


def _bytes_of(rows: torch.Tensor, name: str) -> memoryview:
    if not bool(torch.isfinite(rows).all()):
        raise ModelError(
            f"The merged {name} has values that are not finite.",
            hint="The adapter or the base is broken, or the values leave the range of the base's type.",
        )
    return memoryview(rows.contiguous().view(torch.uint8).numpy()).cast("B")
