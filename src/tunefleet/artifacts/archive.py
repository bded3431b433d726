"""Archives, unpacked as if an enemy had made them; `packing` makes them.

Unpacking writes into a folder of its own that gets its name only at the end. It refuses absolute and climbing names,
links, devices, names given twice, encrypted members, and bombs: too many members, too many bytes, or an expansion
that no honest data has. Owners, modes and times of members are not taken over.
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
_UNPACK: Final = "Unpack it yourself and name the folder."
_REPACK: Final = "Pack it again with plain files and folders only, or unpack it yourself and name the folder."
_MAX_HEADER_BYTES: Final = 4 << 20
_UNENDING: Final = (OverflowError, RecursionError)
"""What the library raises for headers that name impossible lengths, or follow each other without a member."""
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
    """What an archive may become.

    Args:
        max_ratio: Unpacked bytes for each byte of the archive; counted from `ratio_from_bytes` on.
    """

    max_files: int = 100_000
    max_total_bytes: int = 512 << 30
    max_ratio: float = 200.0
    ratio_from_bytes: int = 64 << 20


@dataclass(slots=True)
class _Budget:
    """Counts what came out of an archive."""

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
        """Refuse an unpacked length, be it written or only skipped over."""
        limits = self.limits
        if unpacked_bytes > limits.max_total_bytes:
            raise TooLargeError(f"{self.archive.name} unpacks to more than {limits.max_total_bytes:,} bytes.")
        if unpacked_bytes > limits.ratio_from_bytes and unpacked_bytes > limits.max_ratio * self.archive_bytes:
            raise TooLargeError(
                f"{self.archive.name} unpacks to more than {limits.max_ratio:g} times its size.",
                hint="It looks like an archive bomb; unpack it yourself and name the folder.",
            )


def is_archive(path: Path) -> bool:
    """Whether a path has the name of an archive that can be unpacked."""
    return path.name.lower().endswith((*_TAR_SUFFIXES, _ZIP_SUFFIX))


def is_packed(path: Path) -> bool:
    """Whether a file's content is that of an archive, or of something compressed."""
    with path.open("rb") as file:
        start = file.read(6)
    try:
        return start.startswith((*_ZIP_MAGIC, *_DECOMPRESSORS)) or tarfile.is_tarfile(path)
    except _UNENDING:
        return True  # it begins as one


def unpack(archive: Path, dest: Path, *, limits: UnpackLimits | None = None) -> Path:
    """Unpack a tar (plain, gzip, bzip2, xz) or zip archive; its content decides which, not its name.

    Returns:
        The folder with the content: `dest`, or the single folder at its top; what macOS packs beside it does not count.

    Raises:
        TooLargeError: If it goes beyond a limit.
        MachineError: If the disk is full.
    """
    if not archive.is_file():
        raise NotFoundError(f"There is no archive {str(archive)!r}.")
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise ArtifactError(f"{str(dest)!r} exists already.")
    dest.parent.mkdir(parents=True, exist_ok=True)
    budget = _Budget(archive, archive.stat().st_size, limits or UnpackLimits())
    work = Path(tempfile.mkdtemp(prefix=f".{dest.name}-", dir=dest.parent))
    try:
        with _explained(archive):
            _unpack_into(archive, work, budget)
            work.chmod(0o755)
            work.replace(dest)
            sync_path(dest.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    top = [entry for entry in dest.iterdir() if not _is_of_a_desktop(entry.name)]
    return top[0] if len(top) == 1 and top[0].is_dir() else dest


def _is_of_a_desktop(name: str) -> bool:
    """Whether an entry is what macOS puts beside the files of its user: it says nothing about the layout."""
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
            f"{archive.name} is not a whole archive: {error}.", hint="Copy or pack it again.", detail=repr(error)
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
            raise ArtifactError(f"{archive.name} has {name!r} twice, or a file in the place of a folder.", hint=_REPACK)
        folder.mkdir(parents=True, exist_ok=True)
        if stream is None:
            continue
        if path.exists():
            raise ArtifactError(f"{archive.name} has {name!r} as a folder and as a file.", hint=_REPACK)
        files.add(name)
        # Made anew, never followed: nothing in a fresh folder of ours can be a link.
        with path.open("xb") as file:
            _copy(stream, file, budget)
    if not files:
        raise ArtifactError(f"{archive.name} has no files.", hint="Check what was packed.")


def _copy(stream: IO[bytes], file: IO[bytes], budget: _Budget) -> None:
    while chunk := stream.read(CHUNK_BYTES):
        budget.add(len(chunk))
        file.write(chunk)


# Path and content; a folder has none.
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
        guarded = cast("IO[bytes]", _Guarded(plain, budget))
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
            pass  # a compressed stream says at its end whether it came whole, and that lies behind the last member


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


class _Guarded(io.RawIOBase):
    """The unpacked bytes of a tar: limits hold for headers and for what is skipped, too."""

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
        # A header that says it is gigabytes long would be read into memory at once.
        if size < 0 or size > _MAX_HEADER_BYTES:
            raise ArtifactError(f"{self._budget.archive.name} has a header of {size:,} bytes.")
        data = self._stream.read(size)
        self._budget.check(self._stream.tell())
        return data


def only_folder(folder: Path) -> Path:
    """Return the only folder in a folder, as archives have one; what is no folder, or holds more, itself."""
    if not folder.is_dir():
        return folder
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return entries[0] if [entry.is_dir() for entry in entries] == [True] else folder


def unpacked_path(path: Path, workspace: Path) -> Path:
    """Return the file or folder that a path means; an archive is unpacked once and found again by later launches.

    Raises:
        ArtifactError: If the archive is broken or has an unsafe member.
    """
    if not (path.is_file() and is_archive(path)):
        return path
    target = workspace / f"{path.name}.unpacked"
    if not target.is_dir():
        return unpack(path, target)
    return only_folder(target)
