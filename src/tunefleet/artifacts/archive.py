"""Unpacks archives from untrusted sources; `packing` creates archives.

Unpacks into a temporary folder that gets its final name only at the end. Refuses absolute paths and `..`, links,
devices, duplicate names, encrypted members, and archive bombs: too many members, too many bytes, or an expansion ratio
that no real data has. Owners, modes and times of members are ignored.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, cast

from tunefleet.artifacts.manifest import check_path, target_path
from tunefleet.errors import ArtifactError, MachineError, NotFoundError, TooLargeError, is_disk_full
from tunefleet.fsutil import CHUNK_BYTES, sync_path

_TAR_SUFFIXES: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_ZIP_SUFFIX: Final = ".zip"
_UNPACK: Final = "Unpack it yourself and pass the folder."
_REPACK: Final = "Pack it again with plain files and folders only, or unpack it yourself and pass the folder."
_MAX_HEADER_BYTES: Final = 4 << 20
_UNENDING: Final = (OverflowError, RecursionError)
"""Errors of the library for headers with impossible lengths, or endless chains of headers without a member."""
_BROKEN: Final = (
    *_UNENDING,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    NotImplementedError,
    ValueError,
)
_ZIP_MAGIC: Final = (b"PK\x03\x04", b"PK\x05\x06")
_DECOMPRESSORS: Final[dict[bytes, Callable[..., Any]]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """Limits of unpacking.

    Args:
        max_ratio: Unpacked bytes per byte of the archive; enforced above `ratio_from_bytes`.
    """

    max_files: int = 100_000
    max_total_bytes: int = 512 << 30
    max_ratio: float = 200.0
    ratio_from_bytes: int = 64 << 20


@dataclass(slots=True)
class _Budget:
    """Counts unpacked members and bytes."""

    archive: Path
    archive_bytes: int
    limits: UnpackLimits
    files: int = 0
    total_bytes: int = 0

    def member(self) -> None:
        self.files += 1
        if self.files > self.limits.max_files:
            raise TooLargeError(f"{self.archive.name} has more than {self.limits.max_files:,} members.")

    def add(self, count: int) -> None:
        self.total_bytes += count
        self.check(self.total_bytes)

    def check(self, unpacked_bytes: int) -> None:
        """Refuse an unpacked size, whether it is written or only skipped."""
        limits = self.limits
        if unpacked_bytes > limits.max_total_bytes:
            raise TooLargeError(f"{self.archive.name} unpacks to more than {limits.max_total_bytes:,} bytes.")
        # Small archives may legitimately compress well, for example a file of zeros: the ratio counts from 64 MiB on.
        if unpacked_bytes > limits.ratio_from_bytes and unpacked_bytes > limits.max_ratio * self.archive_bytes:
            raise TooLargeError(
                f"{self.archive.name} unpacks to more than {limits.max_ratio:g} times its size.",
                hint="It looks like an archive bomb. Unpack it yourself and pass the folder.",
            )


def is_archive(path: Path) -> bool:
    """Return whether a path has the name of a supported archive."""
    return path.name.lower().endswith((*_TAR_SUFFIXES, _ZIP_SUFFIX))


def is_packed(path: Path) -> bool:
    """Return whether a file's content is an archive or compressed."""
    with path.open("rb") as file:
        start = file.read(6)
    try:
        return start.startswith((*_ZIP_MAGIC, *_DECOMPRESSORS)) or tarfile.is_tarfile(path)
    except _UNENDING:
        return True  # it starts like a tar archive


def unpack(archive: Path, dest: Path, *, limits: UnpackLimits | None = None) -> Path:
    """Unpack a tar (plain, gzip, bzip2, xz) or zip archive; the format is detected from the content.

    Returns:
        The folder with the content: `dest`, or its single top-level folder, ignoring metadata that macOS adds.

    Raises:
        TooLargeError: If it exceeds a limit.
        MachineError: If the disk is full.
    """
    if not archive.is_file():
        raise NotFoundError(f"Archive not found: {str(archive)!r}.")
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise ArtifactError(f"{str(dest)!r} already exists.")
    dest.parent.mkdir(parents=True, exist_ok=True)
    budget = _Budget(archive, archive.stat().st_size, limits or UnpackLimits())
    # In the target's parent, so that the final rename stays on one file system and is atomic.
    work = Path(tempfile.mkdtemp(prefix=f".{dest.name}-", dir=dest.parent))
    try:
        with _explained(archive):
            _unpack_into(archive, work, budget)
            work.chmod(0o755)
            work.replace(dest)
            sync_path(dest.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    top = [entry for entry in dest.iterdir() if not _is_desktop_metadata(entry.name)]
    return top[0] if len(top) == 1 and top[0].is_dir() else dest


def _is_desktop_metadata(name: str) -> bool:
    """Return whether an entry is macOS metadata, which says nothing about the layout."""
    return name.startswith("._") or name in {"__MACOSX", ".DS_Store"}


@contextmanager
def _explained(archive: Path) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        if is_disk_full(error):
            raise MachineError(
                f"The disk is full; {archive.name} was not unpacked.", hint="Free some space."
            ) from error
        raise ArtifactError(
            f"{archive.name} is corrupt or incomplete: {error}.", hint="Copy or pack it again.", detail=repr(error)
        ) from error


def _unpack_into(archive: Path, work: Path, budget: _Budget) -> None:
    with archive.open("rb") as file:
        zipped = file.read(4) in _ZIP_MAGIC
    members = _zip_members(archive, budget) if zipped else _tar_members(archive, budget)
    files: set[str] = set()
    for name, stream in members:
        path = target_path(work, name)
        folder = path if stream is None else path.parent
        if name in files or any(str(above) in files for above in PurePosixPath(name).parents):
            raise ArtifactError(
                f"{archive.name} contains {name!r} twice, or a file where a folder is needed.", hint=_REPACK
            )
        folder.mkdir(parents=True, exist_ok=True)
        if stream is None:
            continue
        if path.exists():
            raise ArtifactError(f"{archive.name} contains {name!r} as a folder and as a file.", hint=_REPACK)
        files.add(name)
        # Exclusive creation never follows a link; and the fresh folder contains none.
        with path.open("xb") as file:
            _copy(stream, file, budget)
    if not files:
        raise ArtifactError(f"{archive.name} contains no files.", hint="Check the folder that was packed.")


def _copy(stream: IO[bytes], file: IO[bytes], budget: _Budget) -> None:
    while chunk := stream.read(CHUNK_BYTES):
        budget.add(len(chunk))
        file.write(chunk)


# Path and content; `None` for a folder.
Member = tuple[str, IO[bytes] | None]


def _zip_members(archive: Path, budget: _Budget) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            budget.member()
            name = _member_name(archive, info.orig_filename)
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
                raise ArtifactError(f"{archive.name}: {name!r} is a link or a device.", hint=_REPACK)
            if info.flag_bits & 1:
                raise ArtifactError(f"{archive.name}: {name!r} is encrypted.", hint=_UNPACK)
            if info.is_dir():
                yield name, None
                continue
            with opened.open(info) as stream:
                yield name, stream


def _tar_members(archive: Path, budget: _Budget) -> Iterator[Member]:
    with _decompressed(archive) as plain:
        guarded = cast("IO[bytes]", _LimitedStream(plain, budget))
        with tarfile.open(fileobj=guarded, mode="r:", errorlevel=2) as opened:
            while (info := opened.next()) is not None:
                cast(Any, opened).members.clear()  # the list of past members would grow without bound
                budget.member()
                if info.isdir() and info.name.strip("./") == "":
                    continue  # the folder itself, as `tar -C folder .` writes it
                name = _member_name(archive, info.name)
                if info.isdir():
                    yield name, None
                    continue
                stream = opened.extractfile(info) if info.isreg() else None
                if stream is None:
                    raise ArtifactError(f"{archive.name}: {name!r} is a link or a device.", hint=_REPACK)
                yield name, stream
        while guarded.read(CHUNK_BYTES):
            pass  # the checksum of a compressed stream is at its end, after the last member: read it to verify it


def _member_name(archive: Path, name: str) -> str:
    plain = name.removeprefix("./").rstrip("/")
    try:
        return check_path(plain)
    except ArtifactError as error:
        raise ArtifactError(f"{archive.name} is unsafe. {error.message}", hint=_REPACK) from None


@contextmanager
def _decompressed(archive: Path) -> Iterator[IO[bytes]]:
    with archive.open("rb") as file:
        start = file.read(6)
        file.seek(0)
        opener = next((opener for magic, opener in _DECOMPRESSORS.items() if start.startswith(magic)), None)
        if opener is None:
            yield file
            return
        with opener(file) as stream:
            yield stream


class _LimitedStream(io.RawIOBase):
    """Decompressed bytes of a tar: limits also apply to headers and skipped data."""

    def __init__(self, stream: IO[bytes], budget: _Budget) -> None:
        self._stream = stream
        self._budget = budget

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._stream.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._budget.check(offset)
        return self._stream.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        # The library would read a header that claims gigabytes into memory.
        if size < 0 or size > _MAX_HEADER_BYTES:
            raise ArtifactError(f"{self._budget.archive.name} contains a header of {size:,} bytes.")
        data = self._stream.read(size)
        self._budget.check(self._stream.tell())
        return data


def only_folder(folder: Path) -> Path:
    """Return the single subfolder of a folder, as archives have one; otherwise the path itself."""
    if not folder.is_dir():
        return folder
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return entries[0] if [entry.is_dir() for entry in entries] == [True] else folder


def unpacked_path(path: Path, workspace: Path) -> Path:
    """Return the file or folder of a path; an archive is unpacked once and reused by later launches.

    Raises:
        ArtifactError: If the archive is corrupt or has an unsafe member.
    """
    if not (path.is_file() and is_archive(path)):
        return path
    target = workspace / f"{path.name}.unpacked"
    if not target.is_dir():
        return unpack(path, target)
    return only_folder(target)
