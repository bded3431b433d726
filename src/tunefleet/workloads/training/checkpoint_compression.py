"""Checkpoints that are kept take less room: their large files are compressed after they have become whole.

A file's compressed copy is read back and compared with the manifest before the manifest names it instead; only then is
the file deleted. Killed anywhere, the checkpoint is whole: as it was, or as it will be. One that is being uploaded
waits.
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
_LEVEL = 3
_SMALLEST_BYTES = 64 << 10
_CHUNK_BYTES = 1 << 20
_PATIENCE_S = 600.0
_LOOK_S = 0.05
_BUSY_PAUSE_S = 0.5
_replacing = threading.Lock()


class InUseError(Exception):
    """Somebody reads the checkpoint just now."""


class Compress(TrainerCallback):
    """Compresses each checkpoint in a thread once it has its manifest; what is not done when the process ends stays."""

    def __init__(self, in_use: Callable[[str], bool]) -> None:
        self._in_use = in_use
        self._waiting: queue.Queue[Path] = queue.Queue()
        self._thread: threading.Thread | None = None

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Take the checkpoint."""
        if not state.is_world_process_zero or args.output_dir is None:
            return
        self._waiting.put(Path(args.output_dir) / f"checkpoint-{state.global_step}")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tunefleet-compress", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            folder = self._waiting.get()
            deadline = time.monotonic() + _PATIENCE_S
            while not (folder / MANIFEST).exists() and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
            if not (folder / MANIFEST).exists():
                # It may still get one: hashing takes its time, and a checkpoint is not ours to delete for that.
                logger.warning("%s stays as it is: it has no manifest after %.0f s", folder.name, _PATIENCE_S)
                continue
            try:
                saved = compress(folder, self._in_use)
                logger.info("%s is compressed: %s bytes less", folder.name, f"{saved:,}")
            except InUseError:
                time.sleep(_BUSY_PAUSE_S)
                self._waiting.put(folder)
            except (OSError, zstandard.ZstdError) as error:
                logger.warning("%s stays as it is: %s", folder.name, error)
            if not (folder / MANIFEST).exists():
                # Retention has deleted it meanwhile.
                shutil.rmtree(folder, ignore_errors=True)


def compress(folder: Path, in_use: Callable[[str], bool] = lambda _: False) -> int:
    """Compress the large files of a whole checkpoint.

    Raises:
        InUseError: If somebody reads it; nothing of it has changed.
        OSError: If something cannot be written, or does not read back as it was; the checkpoint is whole all the same.
    """
    if in_use(folder.name):
        raise InUseError
    manifest = read_json(folder / MANIFEST)
    if manifest is None:
        raise OSError("it has no manifest")
    before, files, done = int(manifest["size_bytes"]), [], []
    for entry in manifest["files"]:
        source = folder / entry["path"]
        if source.suffix == SUFFIX or entry["size_bytes"] < _SMALLEST_BYTES:
            files.append(entry)
            continue
        files.append(_compressed(source, entry))
        done.append(source)
    if not done:
        return 0
    if in_use(folder.name):
        for source in done:
            source.with_name(source.name + SUFFIX).unlink()
        raise InUseError
    size = sum(int(entry["size_bytes"]) for entry in files)
    changed = {"files": files, "size_bytes": size, "digest": digest_of(files)}
    # By this it is known for the same checkpoint: nobody sends it twice.
    changed["saved_digest"] = manifest.get("saved_digest", manifest["digest"])
    with _replacing:
        if not (folder / MANIFEST).exists():
            raise OSError("it was deleted meanwhile")
        write_json(folder / MANIFEST, {**manifest, **changed}, sync=True)
        sync_folder(folder)
        for source in done:
            source.unlink()
    return before - size


@contextmanager
def left_alone() -> Iterator[None]:
    """Keep the files of every checkpoint where they are while this process, or another rank, reads one."""
    with _replacing:
        yield


def opened(checkpoint: Path, workspace: Path) -> Path:
    """Return a folder with the checkpoint's files as they were saved: itself, or an unpacked copy in the workspace.

    Of several ranks the first unpacks, and all call it.

    Raises:
        OSError: If it cannot be unpacked.
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


class DropUnpacked(TrainerCallback):
    """Deletes the unpacked copy after the first step, when everything was read from it."""

    def __init__(self, folder: Path) -> None:
        self._folder: Path | None = folder

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Delete it."""
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
    digest = hashlib.sha256()
    with partial.open("rb") as written, zstandard.ZstdDecompressor().stream_reader(written) as reader:
        while chunk := reader.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != entry["digest"]:
        partial.unlink()
        raise OSError(f"{source.name} does not read back as it was")
    with partial.open("rb") as written:
        packed_digest = hashlib.file_digest(written, "sha256")
    partial.replace(target)
    path = f"{entry['path']}{SUFFIX}"
    return {"path": path, "digest": packed_digest.hexdigest(), "size_bytes": target.stat().st_size}
