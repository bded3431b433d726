"""Split pushed data into chunks that workers claim: JSON Lines files with a fixed number of rows each.

The data is streamed once. A row that is not a JSON object is an error that names its line; rows are never skipped.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import PurePosixPath
from typing import Final, Self

import orjson

from tunefleet.artifacts import BlobStore, Intake
from tunefleet.db import Connection
from tunefleet.db.repositories import artifacts
from tunefleet.errors import DataError, NotFoundError
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.schemas.api import FileEntry

MAX_CHUNKS: Final = 100_000
_MAX_LINE_BYTES: Final = 64 << 20
_BATCH_BYTES: Final = 1 << 20
_PIN_S: Final = 3600.0
_EMPTY: Final = frozenset({b"", b"\r"})
# These formats hold rows too: refused, because skipping them silently would lose data.
_UNSUPPORTED_SUFFIXES: Final = frozenset(
    {".parquet", ".arrow", ".feather", ".orc", ".avro", ".xlsx", ".gz", ".bz2", ".xz", ".zst", ".zip", ".tar"}
)


@dataclass(frozen=True, slots=True)
class ChunkFile:
    """A stored chunk."""

    digest: str
    size_bytes: int
    rows: int


async def cut(
    core: ServerContext, actor: Actor, dataset: str, chunk_size: int, *, total: int | None = None
) -> tuple[ChunkFile, ...]:
    """Split pushed data into chunks, and pin them for the actor until a federation pins them.

    Raises:
        DataError: If it has a data file that is neither JSON Lines nor CSV, a row that is not an object, no rows, or
            too many chunks.
        QuotaError: If the project would exceed its storage quota.
    """
    files = await core.read(lambda connection: _files(connection, actor.project, dataset))
    if total is not None:
        rows = await asyncio.to_thread(_count, core.blobs, files)
        chunk_size = max(1, -(-rows // total))
    quota_left = await core.read(lambda connection: quotas.room_for(connection, actor.project))
    if quota_left is not None and quota_left < sum(file.size_bytes for file in files):
        # Chunks are stored before they are recorded. If the quota may be exceeded, a dry run decides first, so that no
        # file is left of a refused request.
        planned = await asyncio.to_thread(_split, files, chunk_size, core.blobs, _DryRun)
        await core.read(lambda connection: _refuse(connection, actor.project, planned))
    pieces = await asyncio.to_thread(_split, files, chunk_size, core.blobs, Intake)

    def operation(connection: Connection) -> None:
        now = core.clock.wall()
        _refuse(connection, actor.project, pieces)
        for piece in pieces:
            artifacts.add_blob(
                connection, project=actor.project, digest=piece.digest, size_bytes=piece.size_bytes, at=now
            )
        # Until the federation is created and pins them itself; if that fails, they are garbage collected.
        artifacts.pin(connection, [piece.digest for piece in pieces], holder=actor.key_id, until=now + _PIN_S)

    await core.write(operation)
    return pieces


def _refuse(connection: Connection, project: str, pieces: Sequence[ChunkFile]) -> None:
    known = artifacts.known(connection, project, [piece.digest for piece in pieces])
    new = {piece.digest: piece.size_bytes for piece in pieces if piece.digest not in known}
    quotas.refuse_storing(connection, project, sum(new.values()))


class _DryRun:
    """A dry run of `Intake`: hashes and counts bytes without storing them."""

    def __init__(self, store: BlobStore) -> None:  # noqa: ARG002 - same signature as Intake
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to clean up."""

    def write(self, data: bytes) -> None:
        self._hash.update(data)
        self.size_bytes += len(data)

    def finish(self) -> str:
        return self._hash.hexdigest()


def _files(connection: Connection, project: str, name: str) -> list[FileEntry]:
    rows = artifacts.named(connection, project=project, name=name, task_id=None)
    rows = rows or artifacts.find(connection, project=project, column="digest", value=name)
    rows = rows or artifacts.find(connection, project=project, column="id", value=name)
    if not rows:
        raise NotFoundError(
            f"Data {name!r} not found.",
            hint="Push it with `tunefleet data push`; `tunefleet data ls` lists your data.",
        )
    found = [FileEntry(path=p, digest=d, size_bytes=s) for p, d, s in artifacts.files(connection, rows[0].id)]
    for file in found:
        if PurePosixPath(file.path).suffix.lower() in _UNSUPPORTED_SUFFIXES:
            raise DataError(
                f"{file.path} of {name} cannot be split into chunks (supported: {', '.join(_READERS)}).",
                hint="Push it as JSON Lines, one object per line; `datasets` writes it with `to_json`.",
            )
    data = [file for file in found if PurePosixPath(file.path).suffix.lower() in _READERS]
    if not data:
        raise DataError(
            f"{name} has no file that can be split into chunks.", hint=f"Push a {', '.join(_READERS)} file."
        )
    return data


def _rows(blobs: BlobStore, files: Sequence[FileEntry]) -> Iterator[bytes]:
    return chain.from_iterable(_READERS[PurePosixPath(file.path).suffix.lower()](blobs, file) for file in files)


def _count(blobs: BlobStore, files: Sequence[FileEntry]) -> int:
    return sum(1 for _ in _rows(blobs, files))


def _split(
    files: Sequence[FileEntry], chunk_size: int, blobs: BlobStore, intake: type[Intake | _DryRun]
) -> tuple[ChunkFile, ...]:
    rows = _rows(blobs, files)
    pieces: list[ChunkFile] = []
    while (piece := _write_chunk(islice(rows, chunk_size), intake(blobs))) is not None:
        pieces.append(piece)
        if len(pieces) > MAX_CHUNKS:
            raise DataError(
                f"The data would be split into more than {MAX_CHUNKS:,} chunks.", hint="Set a larger `chunk_size`."
            )
    if not pieces:
        raise DataError(f"{files[0].path} has no rows.")
    return tuple(pieces)


def _write_chunk(rows: Iterator[bytes], into: Intake | _DryRun) -> ChunkFile | None:
    count, batch = 0, bytearray()
    with into as file:
        for row in rows:
            count += 1
            batch += row + b"\n"
            # Rows are written in batches: a system call for each would dominate.
            if len(batch) >= _BATCH_BYTES:
                file.write(bytes(batch))
                batch.clear()
        if not count:
            return None
        file.write(bytes(batch))
        return ChunkFile(file.finish(), file.size_bytes, count)


def _json_rows(blobs: BlobStore, file: FileEntry) -> Iterator[bytes]:
    for number, line in enumerate(_lines(blobs, file), 1):
        row = line.strip()
        if not row:
            continue
        try:
            is_object = isinstance(orjson.loads(row), dict)
        except orjson.JSONDecodeError:
            is_object = False
        if not is_object:
            raise DataError(f"Line {number} of {file.path} is not a JSON object.", hint="Write one object per line.")
        yield row


def _csv_rows(blobs: BlobStore, file: FileEntry) -> Iterator[bytes]:
    delimiter = "\t" if file.path.lower().endswith(".tsv") else ","
    reader = csv.DictReader(_text(blobs, file), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise DataError(f"Line {reader.line_num} of {file.path} does not have as many fields as the header.")
            yield orjson.dumps(row)
    except csv.Error as error:
        raise DataError(f"Line {reader.line_num} of {file.path} cannot be read: {error}.") from error


def _text(blobs: BlobStore, file: FileEntry) -> Iterator[str]:
    for number, line in enumerate(_lines(blobs, file), 1):
        try:
            # Excel writes a byte order mark at the start of a CSV file.
            yield line.decode("utf-8-sig" if number == 1 else "utf-8") + "\n"
        except UnicodeDecodeError:
            raise DataError(f"Line {number} of {file.path} is not UTF-8.") from None


def _lines(blobs: BlobStore, file: FileEntry) -> Iterator[bytes]:
    rest = bytearray()
    number = 0
    for piece in blobs.pieces(file.digest):
        *whole, last = piece.split(b"\n")
        for line in whole:
            number += 1
            rest += line
            yield bytes(rest)
            rest.clear()
        rest += last
        # A file without line breaks must not fill the memory.
        if len(rest) > _MAX_LINE_BYTES:
            raise DataError(f"Line {number + 1} of {file.path} has more than {_MAX_LINE_BYTES >> 20} MiB.")
    if bytes(rest) not in _EMPTY:
        yield bytes(rest)


_READERS: Final[Mapping[str, Callable[[BlobStore, FileEntry], Iterator[bytes]]]] = {
    ".jsonl": _json_rows,
    ".ndjson": _json_rows,
    ".csv": _csv_rows,
    ".tsv": _csv_rows,
}
