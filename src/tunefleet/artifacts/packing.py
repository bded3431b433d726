"""Creates `.tar.gz` archives: equal folders give equal bytes with the same compressor."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

from tunefleet.artifacts.manifest import LocalFile, scan
from tunefleet.errors import MachineError
from tunefleet.fsutil import disk_free, sync_path

# Weights hardly compress, and higher levels cost minutes.
_FAST: Final = 1


@dataclass(frozen=True, slots=True)
class Packing:
    """Compression settings.

    Args:
        pigz: Name or path of pigz, which compresses on several cores; `None` or a missing program compresses in this
            process, on one core.
    """

    level: int | None = None
    pigz: str | None = None
    threads: int | None = None

    @property
    def command(self) -> list[str] | None:
        """Command that compresses standard input to standard output; `None` to compress in this process."""
        program = shutil.which(self.pigz) if self.pigz else None
        if program is None:
            return None
        several = ["--processes", str(self.threads)] if self.threads else []
        return [program, "--no-name", f"-{_FAST if self.level is None else self.level}", *several]


def pack(folder: Path, archive: Path, packing: Packing | None = None) -> None:
    """Create a `.tar.gz` of a folder.

    Raises:
        ArtifactError: If the folder cannot be an artifact (no files, links that lead out of it).
        MachineError: If the disk is full, or the compressor fails.
    """
    files = scan(folder)
    free = disk_free(archive)
    needed = sum(file.entry.size_bytes for file in files)
    if needed > free:
        raise MachineError(
            f"Not enough disk space for {archive.name}: {needed:,} bytes needed, {free:,} free.",
            hint="Free some space.",
        )
    part = archive.with_name(f".{archive.name}.part")
    try:
        with part.open("wb") as raw:
            with _compressed(raw, packing or Packing()) as packed:
                _write(packed, folder.resolve().name, files)
            raw.flush()
            os.fsync(raw.fileno())
        part.replace(archive)
        sync_path(archive.parent)
    finally:
        part.unlink(missing_ok=True)


def _write(packed: IO[bytes], top: str, files: Sequence[LocalFile]) -> None:
    with tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as opened:
        for file in files:
            # Fixed mode and no time, owner or group: the archive depends only on names and content.
            info = tarfile.TarInfo(f"{top}/{file.entry.path}")
            info.size = file.entry.size_bytes
            info.mode = 0o644
            with file.path.open("rb") as content:
                opened.addfile(info, content)


@contextmanager
def _compressed(raw: IO[bytes], packing: Packing) -> Iterator[IO[bytes]]:
    command = packing.command
    if command is None:
        level = _FAST if packing.level is None else packing.level
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=level, mtime=0) as packed:
            yield cast("IO[bytes]", packed)
        return
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=raw, stderr=subprocess.PIPE) as program:
        assert program.stdin is not None
        assert program.stderr is not None
        try:
            yield program.stdin
            program.stdin.close()
        except BrokenPipeError:
            # The program has exited and reports the reason on standard error; the rest cannot be written.
            with contextlib.suppress(BrokenPipeError):
                program.stdin.close()
        stderr = program.stderr.read().decode(errors="replace").strip()
        if program.wait() != 0:
            raise MachineError(f"{command[0]} failed: {stderr or program.returncode}.")
