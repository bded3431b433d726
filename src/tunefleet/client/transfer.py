"""Move artifacts between a folder and the server: one by one, resumable, every digest checked.

Files travel uncompressed and only if the other side lacks them. A transfer that breaks goes on where it stopped, as
long as it gets anywhere; what arrived is checked against its digest before it gets its name.
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
from tunefleet.schemas.compat.task_results import SINGLE_FILE, ResultFile

Phase = Literal["hashing", "uploading", "downloading"]
PIECE_BYTES: Final = 1 << 20
FRUITLESS_TRIES: Final = 8
"""So often a transfer may break in a row without a byte getting through."""
_LONGEST_PAUSE_S: Final = 5.0
_PROXY_PART_BYTES: Final = 1 << 20
_LEAST_PART_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a transfer is.

    Args:
        phase: `hashing`, `uploading` or `downloading`.
        name: What is moved.
        done_bytes: How much of it is done; what the other side had already counts as done.
        total_bytes: How much there is.
    """

    phase: Phase
    name: str
    done_bytes: int
    total_bytes: int


OnProgress = Callable[[Progress], None]


def ignore_progress(progress: Progress) -> None:
    """Report to nobody."""


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
        name: Name of the artifact; that of the file or folder if `None`.
        kind: What it is: `dataset`, `model`, `script`, `adapter`, `files` …
        task_id: The task that it belongs to, if it is the output of one.
        metadata: Anything JSON that is to stay with it.
        expected: Paths within the folder and the digest of each: these files go and no others, and only as they are
            said to be.
        on_progress: Called often, from the thread that reads the file.

    Raises:
        NotFoundError: If there is nothing at `source`.
        ArtifactError: If the folder is empty or has a link out of it, a file changes while it is read, or one is not
            as expected.
        UnreachableError: If the server stays away.
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
    """Do what `push` does; `direct` sends large files to the server's object store, where the server lets it."""
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
                f"{path} of {label} is {'changed' if path in found else 'gone'}.", hint="Push it again."
            )
    return files


def upload(
    label: str,
    files: Sequence[LocalFile],
    *,
    direct: DirectSender | None = None,
    on_progress: OnProgress = ignore_progress,
) -> Flow[None]:
    """Send those files that the server lacks; see `push` for what it raises."""
    by_digest = {file.entry.digest: file for file in files}
    sizes = {digest: file.entry.size_bytes for digest, file in by_digest.items()}
    meter = _Meter("uploading", label, sum(sizes.values()), on_progress)
    reply = yield from ask(workflow_routes.missing_blobs(file.entry for file in by_digest.values()))
    meter.add(sum(sizes.values()) - sum(sizes[blob.digest] for blob in reply.missing))
    for blob in reply.missing:
        file = by_digest[blob.digest]
        # What the server has a part of goes on where it stands.
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
            # nginx takes 1 MiB unless it is told otherwise; others may take less.
            most = max(_LEAST_PART_BYTES, min(size // 4, _PROXY_PART_BYTES))
            continue
        if reached is None:
            meter.at(base + file.entry.size_bytes)
            return
        tries = 0 if reached > offset else tries + 1
        if tries > _most_tries(file.entry, offset):
            raise UnreachableError(
                f"{file.entry.path} could not be uploaded: the connection breaks each time.", hint="Submit again later."
            )
        offset = reached
        if tries:
            yield Pause(min(0.1 * 2 ** min(tries, 6), _LONGEST_PAUSE_S))


def _upload_part(file: LocalFile, offset: int, size: int, meter: _Meter, tries: int) -> Flow[int | None]:
    """Send a part of a file; returns how much the server has of it then, null if it has it whole."""
    try:
        yield from ask(workflow_routes.put_blob(file.entry, offset, size, _reader(file, offset, size, meter)))
    except OffsetConflict as conflict:
        return conflict.cursor
    except (UnreachableError, ConflictError):
        # A conflict: somebody else is sending the same file, or the server has not let go of a broken upload yet,
        # or passes the whole file on to its object store.
        if tries >= _most_tries(file.entry, offset):
            raise
        left = yield from _missing(file)
        return left[0].offset if left else None
    return None if offset + size >= file.entry.size_bytes else offset + size


def _most_tries(entry: FileEntry, offset: int) -> int:
    if offset < entry.size_bytes:
        return FRUITLESS_TRIES
    # All bytes are there: the server passes them on, which takes the longer the more they are.
    return FRUITLESS_TRIES + int(entry.size_bytes / workflow_routes.PASSED_ON_BYTES_PER_S / _LONGEST_PAUSE_S)


def _reader(file: LocalFile, offset: int, size: int, meter: _Meter) -> Callable[[], Iterator[bytes]]:
    def read() -> Iterator[bytes]:
        left = size
        with file.path.open("rb") as source:
            source.seek(offset)
            while left:
                piece = source.read(min(PIECE_BYTES, left))
                if not piece:
                    raise ArtifactError(f"{file.path} became shorter while it was uploaded.", hint="Push it again.")
                left -= len(piece)
                yield piece
                meter.add(len(piece))

    return read


def fetch(
    artifact: str, dest: Path | str, *, overwrite: bool = True, on_progress: OnProgress = ignore_progress
) -> Flow[Path]:
    """Download an artifact.

    Args:
        artifact: Its id, digest or name.
        dest: The folder to put its files into; made if need be. Files that are there already are checked and kept.
        overwrite: Replace files that are there and differ.
        on_progress: Called often, from the thread that writes the file.

    Returns:
        The file, if the artifact was pushed as a single file, else `dest`.

    Raises:
        NotFoundError: If there is no such artifact.
        ConflictError: If a file is there, differs, and is not to be replaced; nothing is written then.
        ArtifactError: If what arrives does not match its digest, or a path would leave `dest`.
    """
    detail = yield from ask(workflow_routes.get_artifact(artifact))
    folder = Path(dest).expanduser()
    return (yield from fetch_files(detail, folder, overwrite=overwrite, on_progress=on_progress))


def fetch_files(
    detail: ArtifactDetail, dest: Path, *, overwrite: bool = True, on_progress: OnProgress = ignore_progress
) -> Flow[Path]:
    """Download the files of an artifact that was looked up already; see `fetch`."""
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
            f"{dest} is there and holds other files, such as {other.name}; nothing was written.",
            hint="Name the folder to put the files into.",
        )
    for entry, target in targets:
        if target.exists() and not _is_there(target, entry):
            raise ConflictError(
                f"{target} is there and differs from the artifact's; nothing was written.",
                hint="Name the folder to put the files into: then what is there is replaced.",
            )


def _is_there(target: Path, entry: FileEntry) -> bool:
    return target.is_file() and hash_file(target) == (entry.digest, entry.size_bytes)


def fetch_result_file(
    task_id: str, file: ResultFile, dest: Path, *, on_progress: OnProgress = ignore_progress
) -> Flow[None]:
    """Download a file of a task to `dest`; see `fetch` for what it raises."""
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
    """Download a file by its digest, or as `get` says, from a byte on."""
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
            f"{entry.path} arrived damaged: its digest is {found[:12]}…, not {entry.digest[:12]}….",
            hint="Fetch it again.",
        )
    with part.open("rb") as whole:
        os.fsync(whole.fileno())
    replace_file(part, target)


class _Writer:
    """Writes pieces and counts them."""

    def __init__(self, out: BinaryIO, meter: _Meter) -> None:
        self._out = out
        self._meter = meter

    def write(self, data: bytes, /) -> None:
        self._out.write(data)
        self._meter.add(len(data))


class _Meter:
    """Adds up and reports."""

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
