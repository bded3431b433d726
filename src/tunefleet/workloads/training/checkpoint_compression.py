"""Compresses the large files of complete checkpoints with zstd.

A compressed copy is read back and compared with the manifest before the manifest names it instead of the original;
only then is the original deleted. A crash at any point leaves a complete checkpoint, compressed or not. A checkpoint
that is being uploaded is compressed later.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zstandard
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tunefleet.trainer_control.checkpoints.manifest import MANIFEST, digest_of
from tunefleet.trainer_control.distributed import world
from tunefleet.trainer_control.files import read_json, sync_folder, write_json

logger = logging.getLogger(__name__)

SUFFIX = ".zst"
# zstd's default: higher levels gain little on floating-point weights and take much longer.
_LEVEL = 3
# Smaller files (configs, states) are not worth it and stay readable.
_MIN_BYTES = 64 << 10
_CHUNK_BYTES = 1 << 20
# How long a checkpoint may take to get its manifest, which is written after hashing all of its files.
_MANIFEST_TIMEOUT_S = 600.0
_POLL_S = 0.05
_IN_USE_RETRY_S = 0.5
# Held while originals are replaced, and by readers (`files_kept`) that must find the files where they listed them.
_replacing = threading.Lock()


class InUseError(Exception):
    """The checkpoint is being read."""


class CompressionCallback(TrainerCallback):
    """Compresses each checkpoint in a background thread once it has its manifest."""

    def __init__(self, in_use: Callable[[str], bool]) -> None:
        self._in_use = in_use
        self._waiting: queue.Queue[Path] = queue.Queue()
        self._thread: threading.Thread | None = None

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Queue the checkpoint."""
        if not state.is_world_process_zero or args.output_dir is None:
            return
        self._waiting.put(Path(args.output_dir) / f"checkpoint-{state.global_step}")
        if self._thread is None:
            # A daemon thread: what is not compressed when the process ends stays uncompressed and is valid.
            self._thread = threading.Thread(target=self._run, name="tunefleet-compress", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            folder = self._waiting.get()
            deadline = time.monotonic() + _MANIFEST_TIMEOUT_S
            while not (folder / MANIFEST).exists() and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            if not (folder / MANIFEST).exists():
                # Not deleted: hashing a large checkpoint may take longer, and the manifest may still be written.
                logger.warning("%s is not compressed: no manifest after %.0f s", folder.name, _MANIFEST_TIMEOUT_S)
                continue
            try:
                saved = compress(folder, self._in_use)
                logger.info("%s is compressed: %s bytes saved", folder.name, f"{saved:,}")
            except InUseError:
                time.sleep(_IN_USE_RETRY_S)
                self._waiting.put(folder)
            except (OSError, zstandard.ZstdError) as error:
                logger.warning("%s is not compressed: %s", folder.name, error)
            if not (folder / MANIFEST).exists():
                # Retention deleted the checkpoint in the meantime; compressed copies may be left in its folder.
                shutil.rmtree(folder, ignore_errors=True)


def compress(folder: Path, in_use: Callable[[str], bool] = lambda _: False) -> int:
    """Compress the large files of a complete checkpoint.

    Raises:
        InUseError: If the checkpoint is being read; it is unchanged.
        OSError: If a file cannot be written or does not read back unchanged; the checkpoint stays valid.
    """
    if in_use(folder.name):
        raise InUseError
    manifest = read_json(folder / MANIFEST)
    if manifest is None:
        raise OSError("it has no manifest")
    before, files, done = int(manifest["size_bytes"]), [], []
    for entry in manifest["files"]:
        source = folder / entry["path"]
        if source.suffix == SUFFIX or entry["size_bytes"] < _MIN_BYTES:
            files.append(entry)
            continue
        files.append(_compressed(source, entry))
        done.append(source)
    if not done:
        return 0
    # Checked again: an upload may have started during the compression, which takes seconds to minutes.
    if in_use(folder.name):
        for source in done:
            source.with_name(source.name + SUFFIX).unlink()
        raise InUseError
    size = sum(int(entry["size_bytes"]) for entry in files)
    changed = {"files": files, "size_bytes": size, "digest": digest_of(files)}
    # The digest before compression identifies the checkpoint, so that it is not uploaded twice.
    changed["saved_digest"] = manifest.get("saved_digest", manifest["digest"])
    with _replacing:
        if not (folder / MANIFEST).exists():
            raise OSError("it was deleted in the meantime")
        # Durable before the originals are deleted: after a power failure the manifest must name existing files.
        write_json(folder / MANIFEST, {**manifest, **changed}, sync=True)
        sync_folder(folder)
        for source in done:
            source.unlink()
    return before - size


@contextmanager
def files_kept() -> Iterator[None]:
    """Block compression from replacing files while this process, or another rank, reads a checkpoint."""
    with _replacing:
        yield


def decompressed(checkpoint: Path, workspace: Path) -> Path:
    """Return a folder with the uncompressed checkpoint: itself, or a decompressed copy in the workspace.

    Every rank calls it; rank 0 decompresses.

    Raises:
        OSError: If a file cannot be decompressed.
    """
    packed = list(checkpoint.rglob(f"*{SUFFIX}"))
    if not packed:
        return checkpoint
    target, group = workspace / checkpoint.name, world.distributed()
    if world.rank() == 0:
        _unpack(checkpoint, target)
    if group is not None:
        group.barrier()
    return target


def _unpack(checkpoint: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    for source in checkpoint.rglob("*"):
        copy = target / source.relative_to(checkpoint)
        if source.is_dir() or source.name == MANIFEST:
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == SUFFIX:
            with source.open("rb") as packed_file, copy.with_suffix("").open("wb") as file:
                zstandard.ZstdDecompressor().copy_stream(packed_file, file)
        elif not copy.exists():
            shutil.copyfile(source, copy)


class DeleteDecompressed(TrainerCallback):
    """Deletes the decompressed copy after the first step, when everything has been read from it."""

    def __init__(self, folder: Path) -> None:
        self._folder: Path | None = folder

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Delete the copy."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _compressed(source: Path, entry: dict[str, Any]) -> dict[str, Any]:
    target = source.with_name(source.name + SUFFIX)
    partial = source.with_name(f".{source.name}{SUFFIX}.partial")
    with source.open("rb") as file, partial.open("wb") as packed:
        zstandard.ZstdCompressor(level=_LEVEL).copy_stream(file, packed)
        packed.flush()
        os.fsync(packed.fileno())
    # Read back from disk: the original is deleted afterwards, so a faulty write would lose the checkpoint.
    digest = hashlib.sha256()
    with partial.open("rb") as written, zstandard.ZstdDecompressor().stream_reader(written) as reader:
        while chunk := reader.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != entry["digest"]:
        partial.unlink()
        raise OSError(f"{source.name} does not match its digest after compression")
    with partial.open("rb") as written:
        packed_digest = hashlib.file_digest(written, "sha256")
    partial.replace(target)
    path = f"{entry['path']}{SUFFIX}"
    return {"path": path, "digest": packed_digest.hexdigest(), "size_bytes": target.stat().st_size}
