"""Transfers artifacts between a folder and the server: file by file, resumable, every digest verified.

Files are sent uncompressed, and only if the other side does not have them. An interrupted transfer resumes as long as
it makes progress; a file is verified against its digest before it gets its name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

from tunefleet.artifacts import LocalFile, hash_file, manifest_digest, replace_file, scan, scan_size, target_path
from tunefleet.client.call import Call, Flow, Pause, Sink, ask, work
from tunefleet.client.direct import DirectSender
from tunefleet.client.problems import TooLargeForProxy
from tunefleet.client.routes import workflow_routes
from tunefleet.errors import ArtifactError, ConflictError, OffsetConflict, UnreachableError
from tunefleet.schemas.api import ArtifactCreate, ArtifactDetail, ArtifactView, BlobMissing, FileEntry
from tunefleet.schemas.base import is_shown
from tunefleet.schemas.worker_guide import SINGLE_FILE, ResultFile

Phase = Literal["hashing", "uploading", "downloading"]
PIECE_BYTES: Final = 1 << 20
FRUITLESS_TRIES: Final = 8
"""Consecutive interruptions without progress before a transfer fails."""
_LONGEST_PAUSE_S: Final = 5.0
_PROXY_PART_BYTES: Final = 1 << 20
_LEAST_PART_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a transfer.

    Args:
        phase: `hashing`, `uploading` or `downloading`.
        name: Name of the artifact or file.
        done_bytes: Bytes done, including those that the other side already had.
        total_bytes: Total size.
    """

    phase: Phase
    name: str
    done_bytes: int
    total_bytes: int


OnProgress = Callable[[Progress], None]


def ignore_progress(progress: Progress) -> None:
    """Ignore the progress."""


def push(
    source: Path | str,
    *,
    name: str | None = None,
    kind: str = "files",
    task_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    expected: Mapping[str, str] | None = None,
    on_progress: OnProgress = ignore_progress,
) -> Flow[ArtifactView]:
    """Upload a file or a folder and publish it as an artifact.

    Args:
        source: The file or folder.
        name: Name of the artifact. Default: the name of the file or folder.
        kind: Kind of the artifact: `dataset`, `model`, `script`, `adapter`, `files` …
        task_id: The task whose output it is, if any.
        metadata: JSON metadata of the artifact.
        expected: Relative path → digest; uploads exactly these files, and fails if one differs.
        on_progress: Called often, from the thread that reads the file.

    Raises:
        NotFoundError: If `source` does not exist.
        ArtifactError: If the folder is empty or has a link that leads out of it, or a file changes while it is read
            or differs from `expected`.
        UnreachableError: If the server does not respond.
    """
    label = name or "".join(each if is_shown(each) else "_" for each in Path(source).expanduser().resolve().name)
    return deliver(source, label, kind, task_id=task_id, metadata=metadata, expected=expected, on_progress=on_progress)


def deliver(
    source: Path | str,
    label: str,
    kind: str,
    *,
    task_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    expected: Mapping[str, str] | None = None,
    direct: DirectSender | None = None,
    on_progress: OnProgress = ignore_progress,
) -> Flow[ArtifactView]:
    """As `push`; `direct` uploads large files to the server's object store, if the server allows it."""
    root = Path(source).expanduser()
    files = yield from work(lambda: _scan(root, label, on_progress, expected))
    yield from upload(label, files, direct=direct, on_progress=on_progress)
    entries = tuple(file.entry for file in files)
    about = {**(metadata or {}), **({SINGLE_FILE: True} if root.is_file() else {})}
    body = ArtifactCreate(name=label, kind=kind, files=entries, digest=manifest_digest(entries), metadata=about)
    return (yield from ask(workflow_routes.publish_artifact(body, task_id)))


def _scan(
    root: Path, label: str, on_progress: OnProgress, expected: Mapping[str, str] | None = None
) -> list[LocalFile]:
    if expected is None:
        meter = _Meter("hashing", label, scan_size(root), on_progress)
        return scan(root, progress=meter.add)
    files = scan(root, skip=lambda path: path not in expected)
    found = {file.entry.path: file.entry.digest for file in files}
    for path, digest in expected.items():
        if found.get(path) != digest:
            raise ArtifactError(
                f"{path} of {label} {'has changed' if path in found else 'is missing'}.", hint="Push it again."
            )
    return files


def upload(
    label: str,
    files: Sequence[LocalFile],
    *,
    direct: DirectSender | None = None,
    on_progress: OnProgress = ignore_progress,
) -> Flow[None]:
    """Send the files that the server does not have; raises as `push` does."""
    by_digest = {file.entry.digest: file for file in files}
    sizes = {digest: file.entry.size_bytes for digest, file in by_digest.items()}
    meter = _Meter("uploading", label, sum(sizes.values()), on_progress)
    reply = yield from ask(workflow_routes.missing_blobs(file.entry for file in by_digest.values()))
    meter.add(sum(sizes.values()) - sum(sizes[blob.digest] for blob in reply.missing))
    for blob in reply.missing:
        file = by_digest[blob.digest]
        # A partly uploaded file is resumed through the server, not sent again to the store.
        if direct is not None and reply.direct is not None and not blob.offset:
            base = meter.done
            kept = yield from work(lambda file=file, offer=reply.direct: direct.send(file, offer, meter.add))  # type: ignore[misc]
            meter.at(base + file.entry.size_bytes if kept else base)
            if kept:
                continue
        yield from _upload_one(file, blob.offset, meter)


def _missing(file: LocalFile) -> Flow[tuple[BlobMissing, ...]]:
    reply = yield from ask(workflow_routes.missing_blobs([file.entry]))
    return reply.missing


def _upload_one(file: LocalFile, offset: int, meter: _Meter) -> Flow[None]:
    tries = 0
    base, most = meter.done, file.entry.size_bytes
    while True:
        meter.at(base + offset)
        size = min(most, file.entry.size_bytes - offset)
        try:
            reached = yield from _upload_part(file, offset, size, meter, tries)
        except TooLargeForProxy:
            if size <= _LEAST_PART_BYTES:
                raise
            # nginx's default limit is 1 MiB; other proxies may have a lower one.
            most = max(_LEAST_PART_BYTES, min(size // 4, _PROXY_PART_BYTES))
            continue
        if reached is None:
            meter.at(base + file.entry.size_bytes)
            return
        tries = 0 if reached > offset else tries + 1
        if tries > _most_tries(file.entry, offset):
            raise UnreachableError(
                f"Cannot upload {file.entry.path}: the connection is interrupted repeatedly.", hint="Try again later."
            )
        offset = reached
        if tries:
            yield Pause(min(0.1 * 2 ** min(tries, 6), _LONGEST_PAUSE_S))


def _upload_part(file: LocalFile, offset: int, size: int, meter: _Meter, tries: int) -> Flow[int | None]:
    """Send a part of a file; returns how many bytes the server has, or `None` if it has the complete file."""
    try:
        yield from ask(workflow_routes.put_blob(file.entry, offset, size, _reader(file, offset, size, meter)))
    except OffsetConflict as conflict:
        return conflict.cursor
    except (UnreachableError, ConflictError):
        # A conflict means that another client sends the same file, or the server has not released an interrupted
        # upload yet, or is still passing the complete file on to its object store.
        if tries >= _most_tries(file.entry, offset):
            raise
        left = yield from _missing(file)
        return left[0].offset if left else None
    return None if offset + size >= file.entry.size_bytes else offset + size


def _most_tries(entry: FileEntry, offset: int) -> int:
    if offset < entry.size_bytes:
        return FRUITLESS_TRIES
    # The server has all bytes and passes them on to its object store, which takes longer for larger files.
    return FRUITLESS_TRIES + int(entry.size_bytes / workflow_routes.PASSED_ON_BYTES_PER_S / _LONGEST_PAUSE_S)


def _reader(file: LocalFile, offset: int, size: int, meter: _Meter) -> Callable[[], Iterator[bytes]]:
    def read() -> Iterator[bytes]:
        left = size
        with file.path.open("rb") as source:
            source.seek(offset)
            while left:
                piece = source.read(min(PIECE_BYTES, left))
                if not piece:
                    raise ArtifactError(f"{file.path} was truncated during the upload.", hint="Push it again.")
                left -= len(piece)
                yield piece
                meter.add(len(piece))

    return read


def fetch(
    artifact: str, dest: Path | str, *, overwrite: bool = True, on_progress: OnProgress = ignore_progress
) -> Flow[Path]:
    """Download an artifact.

    Args:
        artifact: Id, digest or name.
        dest: Target folder, created if missing. Existing files are verified and kept.
        overwrite: Replace existing files that differ.
        on_progress: Called often, from the thread that writes the file.

    Returns:
        The file if the artifact is a single file, else `dest`.

    Raises:
        NotFoundError: If the artifact does not exist.
        ConflictError: If a file exists, differs, and `overwrite` is false; nothing is written.
        ArtifactError: If a download does not match its digest, or a path leads out of `dest`.
    """
    detail = yield from ask(workflow_routes.get_artifact(artifact))
    folder = Path(dest).expanduser()
    return (yield from fetch_files(detail, folder, overwrite=overwrite, on_progress=on_progress))


def fetch_files(
    detail: ArtifactDetail, dest: Path, *, overwrite: bool = True, on_progress: OnProgress = ignore_progress
) -> Flow[Path]:
    """Download the files of an artifact whose details are known; see `fetch`."""
    meter = _Meter("downloading", detail.name, detail.size_bytes, on_progress)
    targets = [(entry, target_path(dest, entry.path)) for entry in detail.files]
    if not overwrite:
        yield from work(lambda: _refuse_others(targets, dest))
    dest.mkdir(parents=True, exist_ok=True)
    for entry, target in targets:
        base = meter.done
        present = yield from work(lambda entry=entry, target=target: _is_there(target, entry))  # type: ignore[misc]
        if not present:
            yield from _fetch_one(entry, target, meter)
        meter.at(base + entry.size_bytes)
    single = len(targets) == 1 and bool(detail.metadata.get(SINGLE_FILE))
    return targets[0][1] if single else dest


def _refuse_others(targets: Sequence[tuple[FileEntry, Path]], dest: Path) -> None:
    own = {target for _, target in targets}
    other = next((path for path in dest.rglob("*") if path.is_file() and path not in own), None)
    if other is not None and other.suffix != ".part":
        raise ConflictError(
            f"{dest} contains other files, such as {other.name}. Nothing was written.",
            hint="Pass the target folder explicitly.",
        )
    for entry, target in targets:
        if target.exists() and not _is_there(target, entry):
            raise ConflictError(
                f"{target} exists and differs from the artifact's file. Nothing was written.",
                hint="Pass the target folder explicitly to replace existing files.",
            )


def _is_there(target: Path, entry: FileEntry) -> bool:
    return target.is_file() and hash_file(target) == (entry.digest, entry.size_bytes)


def fetch_result_file(
    task_id: str, file: ResultFile, dest: Path, *, on_progress: OnProgress = ignore_progress
) -> Flow[None]:
    """Download a file of a task to `dest`; raises the same errors as `fetch`."""
    entry = FileEntry(path=dest.name, digest=file.sha256, size_bytes=file.size_bytes)
    meter = _Meter("downloading", file.name, file.size_bytes, on_progress)
    present = yield from work(lambda: _is_there(dest, entry))
    if not present:
        yield from _fetch_one(
            entry,
            dest,
            meter,
            lambda offset, sink: workflow_routes.get_result_file(task_id, file.name, offset, entry.digest, sink),
        )
    meter.at(entry.size_bytes)


def _fetch_one(
    entry: FileEntry, target: Path, meter: _Meter, get: Callable[[int, Sink], Call[None]] | None = None
) -> Flow[None]:
    """Download a file by its digest, or with `get`, resuming a partial one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{entry.digest[:12]}.part")
    tries = 0
    base = meter.done
    while True:
        offset = part.stat().st_size if part.exists() else 0
        if offset > entry.size_bytes:
            part.unlink()
            offset = 0
        meter.at(base + offset)
        if offset == entry.size_bytes:
            part.touch()
            break
        with part.open("ab") as out:
            writer = _Writer(out, meter)
            try:
                yield from ask(get(offset, writer) if get else workflow_routes.get_blob(entry.digest, offset, writer))
            except UnreachableError:
                tries = 0 if out.tell() > offset else tries + 1
                if tries > FRUITLESS_TRIES:
                    raise
            else:
                break
        yield Pause(min(0.1 * 2**tries, 5.0))
    yield from work(lambda: _keep(part, target, entry))


def _keep(part: Path, target: Path, entry: FileEntry) -> None:
    found, _ = hash_file(part)
    if found != entry.digest:
        part.unlink()
        raise ArtifactError(
            f"{entry.path} was corrupted in transfer: its digest is {found[:12]}…, not {entry.digest[:12]}….",
            hint="Download it again.",
        )
    with part.open("rb") as whole:
        # Before the rename: after a power cut the final name must not refer to missing data.
        os.fsync(whole.fileno())
    replace_file(part, target)


class _Writer:
    """Writes pieces and reports the progress."""

    def __init__(self, out: BinaryIO, meter: _Meter) -> None:
        self._out = out
        self._meter = meter

    def write(self, data: bytes, /) -> None:
        self._out.write(data)
        self._meter.add(len(data))


class _Meter:
    """Sums up and reports progress."""

    def __init__(self, phase: Phase, name: str, total: int, report: OnProgress) -> None:
        self._phase = phase
        self._name = name
        self._total = total
        self._report = report
        self.done = 0
        self.at(0)

    def add(self, size: int) -> None:
        self.at(self.done + size)

    def at(self, done: int) -> None:
        self.done = done
        self._report(Progress(self._phase, self._name, done, self._total))
