"""Checkpoint manifests, and the newest valid checkpoint.

Hugging Face writes `checkpoint-<step>` in place. Here its files are hashed and synced, then `manifest.json` is renamed
into it: a folder without a manifest is not a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import read_json, sync_folder, write_json

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
SUPERSEDED = "superseded"
_NAME = re.compile(r"checkpoint-(\d+)")
# File names of one rank in Transformers, torch's distributed checkpoints and DeepSpeed.
_RANKED = re.compile(r"rng_state_(\d+)\.pth|__(\d+)_\d+\.distcp|.*_rank_?(\d+)(?!\d).*")
_CHUNK_BYTES = 1 << 20
_MAX_APART_BYTES = 16 << 20
"""A rank's random state takes some ten kilobytes, and a few more for each device."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has its manifest."""

    path: Path
    step: int
    digest: str
    size_bytes: int


# Digest, size in bytes and time of the last change (ns) of a file when it was hashed.
Hashed = tuple[str, int, int]


def hash_own_files(folder: Path, rank: int) -> dict[str, Hashed]:
    """Hash and sync the files of a checkpoint that one rank wrote; files without a rank in their name are rank 0's.

    Args:
        folder: The checkpoint; other ranks may still write to it.

    Raises:
        OSError: If a file cannot be read or synced.
    """
    own = [file for file in _files(folder) if _rank_of(file) == rank]
    return {file.relative_to(folder).as_posix(): _hashed(file) for file in own}


def read_apart(folder: Path, hashed: Mapping[str, Hashed]) -> dict[str, bytes]:
    """Read the files that a rank on another machine than rank 0 wrote, such as its random state.

    Args:
        folder: The checkpoint, on this machine.

    Raises:
        OSError: If a file cannot be read, or they are too large to be sent, such as parts of the weights.
    """
    size = sum(each[1] for each in hashed.values())
    if size > _MAX_APART_BYTES:
        raise OSError(
            f"it has written {size:,} bytes of the checkpoint on its own machine; with several machines, rank 0 must "
            "write the complete checkpoint"
        )
    return {name: (folder / name).read_bytes() for name in hashed}


def finish_checkpoint(
    path: str | Path, hashed: Mapping[str, Hashed] | None = None, *, launch: str | None = None
) -> Checkpoint:
    """Hash and sync the files of a checkpoint and give it its manifest.

    Args:
        path: A `checkpoint-<step>` folder that is not written to any more.
        hashed: Digests that the ranks already have; a file that has changed since is hashed again.
        launch: The launch that made it, if it has a journal: its records up to here lead to this checkpoint.

    Raises:
        OSError: If a file cannot be read or synced; the checkpoint then has no manifest.
    """
    folder = Path(path)
    # An old manifest must not vouch for files that are being replaced.
    (folder / MANIFEST).unlink(missing_ok=True)
    files: list[dict[str, Any]] = []
    for file in _files(folder):
        name, facts = file.relative_to(folder).as_posix(), file.stat()
        known = (hashed or {}).get(name)
        if known is None or tuple(known[1:]) != (facts.st_size, facts.st_mtime_ns):
            known = _hashed(file)
        files.append({"path": name, "digest": known[0], "size_bytes": known[1]})
    # File names first, manifest last: after a power cut a manifest never names a file that is missing.
    for inner in {file.parent for file in _files(folder)} | {folder}:
        sync_folder(inner)
    manifest = {
        "step": step_of(folder),
        "name": folder.name,
        "digest": digest_of(files),
        "size_bytes": sum(file["size_bytes"] for file in files),
        "files": files,
        "at": time.time(),
        "launch": launch,
    }
    write_json(folder / MANIFEST, manifest, sync=True)
    sync_folder(folder.parent)
    return _described(folder, manifest)


def launch_of(checkpoint: Checkpoint) -> str | None:
    """Return the launch that made a checkpoint, or None if its manifest does not name one."""
    launch = (read_json(checkpoint.path / MANIFEST) or {}).get("launch")
    return launch if isinstance(launch, str) else None


def newest_valid(checkpoints_dir: str | Path, *, set_aside: bool = True) -> Path | None:
    """Return the newest checkpoint whose files match its manifest, or None. See `find_newest`."""
    found = find_newest(Path(checkpoints_dir), set_aside=set_aside)
    return found.path if found else None


def find_newest(
    checkpoints_dir: Path, *, set_aside: bool = True, on_fault: Callable[[str], object] | None = None
) -> Checkpoint | None:
    """Find the newest checkpoint whose files match its manifest.

    Args:
        checkpoints_dir: The folder that holds the `checkpoint-<step>` folders.
        set_aside: Move newer ones that are broken or unfinished to `superseded/`; only for the process that holds the
            job's lock, since a trainer may be writing one.
        on_fault: Called for each one that is set aside, with the reason.
    """
    for folder in reversed(list_folders(checkpoints_dir)):
        fault = invalid_reason(folder)
        if fault is None:
            manifest = _manifest(folder)
            return _described(folder, manifest) if manifest else None
        if set_aside:
            logger.warning("%s is set aside: %s; using the checkpoint before it", folder.name, fault)
            if on_fault is not None:
                on_fault(f"{folder.name} is set aside: {fault}")
            _supersede(folder)
    return None


def find_step(checkpoints_dir: Path, step: int) -> tuple[Checkpoint | None, str | None]:
    """Return the checkpoint of a step if its files match its manifest; else None and the reason."""
    folder = checkpoints_dir / f"checkpoint-{step}"
    fault = invalid_reason(folder) if folder.is_dir() else "there is no such checkpoint"
    manifest = _manifest(folder) if fault is None else None
    return (_described(folder, manifest), None) if manifest is not None else (None, fault)


def list_complete(checkpoints_dir: Path) -> list[Checkpoint]:
    """Return the checkpoints that have a manifest, oldest first; their files are not read."""
    manifests = ((folder, _manifest(folder)) for folder in list_folders(checkpoints_dir))
    return [_described(folder, manifest) for folder, manifest in manifests if manifest is not None]


def invalid_reason(folder: Path) -> str | None:
    """Return why a checkpoint cannot be resumed from, or None if its files match its manifest."""
    manifest = _manifest(folder)
    if manifest is None:
        return "it has no complete manifest, it was not finished"
    for entry in manifest["files"]:
        file = folder / entry["path"]
        try:
            size = file.stat().st_size
        except FileNotFoundError:
            return f"{entry['path']} is missing"
        # Size first: it is cheap, and a truncated file is the most common damage.
        if size != entry["size_bytes"]:
            return f"{entry['path']} has {size} bytes instead of {entry['size_bytes']}"
        if _hash(file) != entry["digest"]:
            return f"{entry['path']} does not match its digest"
    return None


def supersede_beyond(checkpoints_dir: Path, step: int) -> list[Path]:
    """Move checkpoints beyond a step to `superseded/`: a run that resumes at `step` will write them again."""
    beyond = [folder for folder in list_folders(checkpoints_dir) if step_of(folder) > step]
    return [_supersede(folder) for folder in beyond]


def step_of(folder: Path) -> int:
    """Return the step in a checkpoint's name; -1 if it has none."""
    match = _NAME.match(folder.name)
    return int(match.group(1)) if match else -1


def list_folders(parent: Path) -> list[Path]:
    """Return the `checkpoint-<step>` folders of a folder, oldest first, complete or not."""
    if not parent.is_dir():
        return []
    return sorted((path for path in parent.iterdir() if step_of(path) >= 0 and path.is_dir()), key=step_of)


def _manifest(folder: Path) -> dict[str, Any] | None:
    manifest = read_json(folder / MANIFEST)
    if manifest is None or not isinstance(manifest.get("files"), list):
        return None
    # The digest over the entries shows a damaged manifest.
    return manifest if manifest.get("digest") == digest_of(manifest["files"]) else None


def _files(folder: Path) -> Iterator[Path]:
    # Files with a leading dot are temporary manifests that were never renamed.
    excluded = (folder / MANIFEST, *folder.glob(f".{MANIFEST}.*"))
    return iter(sorted(path for path in folder.rglob("*") if path.is_file() and path not in excluded))


def _rank_of(file: Path) -> int:
    match = _RANKED.fullmatch(file.name)
    return int(next(number for number in match.groups() if number)) if match else 0


def _hashed(file: Path) -> Hashed:
    facts = file.stat()
    return _hash(file, sync=True), facts.st_size, facts.st_mtime_ns


def _hash(file: Path, *, sync: bool = False) -> str:
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as stream:
        # In chunks: a weight file may be larger than the memory.
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
        if sync:
            os.fsync(stream.fileno())
    return digest.hexdigest()


def digest_of(files: list[dict[str, Any]]) -> str:
    """Return the digest of a manifest with these files."""
    # Sorted and without white space, so that every process computes the same digest.
    rows = sorted([file["path"], file["digest"], file["size_bytes"]] for file in files)
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()


def _described(folder: Path, manifest: dict[str, Any]) -> Checkpoint:
    return Checkpoint(folder, step_of(folder), str(manifest["digest"]), int(manifest["size_bytes"]))


def _supersede(folder: Path) -> Path:
    aside = folder.parent / SUPERSEDED
    aside.mkdir(exist_ok=True)
    # A step may be superseded several times: each copy gets a name of its own.
    target, count = aside / folder.name, 0
    while target.exists():
        count += 1
        target = aside / f"{folder.name}.{count}"
    # A rename, not a copy: it is atomic and takes no space.
    folder.rename(target)
    sync_folder(folder.parent)
    return target
