"""Checkpoints that are known to be whole: manifests, the newest valid one, retention.

Hugging Face writes `checkpoint-<step>` in place. Here its files are hashed and synced, then `manifest.json` is renamed
into it: no manifest, no checkpoint. Nothing is deleted that a resume may still need.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import read_json, sync_folder, write_json

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
SUPERSEDED = "superseded"
_NAME = re.compile(r"checkpoint-(\d+)")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has its manifest."""

    path: Path
    step: int
    digest: str
    size_bytes: int


def finish_checkpoint(path: str | Path) -> Checkpoint:
    """Hash and sync the files of a checkpoint and give it its manifest; then it can be relied on.

    Args:
        path: A `checkpoint-<step>` folder that nobody writes to any more.

    Raises:
        OSError: If a file cannot be read or synced; the checkpoint then has no manifest.
    """
    folder = Path(path)
    (folder / MANIFEST).unlink(missing_ok=True)
    files: list[dict[str, Any]] = []
    for file in _files(folder):
        digest = _hash(file, sync=True)
        files.append({"path": file.relative_to(folder).as_posix(), "digest": digest, "size_bytes": file.stat().st_size})
    for inner in {file.parent for file in _files(folder)} | {folder}:
        sync_folder(inner)
    manifest = {
        "step": step_of(folder),
        "name": folder.name,
        "digest": _manifest_digest(files),
        "size_bytes": sum(file["size_bytes"] for file in files),
        "files": files,
        "at": time.time(),
    }
    write_json(folder / MANIFEST, manifest, sync=True)
    sync_folder(folder.parent)
    return _described(folder, manifest)


def newest_valid(checkpoints_dir: str | Path, *, set_aside: bool = True) -> Path | None:
    """Return the newest checkpoint whose files match its manifest, or None. See `find_newest`."""
    found = find_newest(Path(checkpoints_dir), set_aside=set_aside)
    return found.path if found else None


def find_newest(checkpoints_dir: Path, *, set_aside: bool = True) -> Checkpoint | None:
    """Find the newest checkpoint whose files match its manifest.

    Args:
        checkpoints_dir: The folder that holds the `checkpoint-<step>` folders.
        set_aside: Move newer ones that are broken or unfinished to `superseded/`; only for the process that holds the
            job's lock, since a trainer may just be writing one.
    """
    for folder in reversed(_folders(checkpoints_dir)):
        fault = fault_of(folder)
        if fault is None:
            manifest = _manifest(folder)
            return _described(folder, manifest) if manifest else None
        if set_aside:
            logger.warning("%s is set aside: %s; the checkpoint before it is used", folder.name, fault)
            _supersede(folder)
    return None


def list_whole(checkpoints_dir: Path) -> list[Checkpoint]:
    """Return the checkpoints that have a manifest, oldest first; their files are not read."""
    manifests = ((folder, _manifest(folder)) for folder in _folders(checkpoints_dir))
    return [_described(folder, manifest) for folder, manifest in manifests if manifest is not None]


def fault_of(folder: Path) -> str | None:
    """Return why a checkpoint cannot be resumed from, or None if its files match its manifest."""
    manifest = _manifest(folder)
    if manifest is None:
        return "it has no whole manifest, it was not finished"
    for entry in manifest["files"]:
        file = folder / entry["path"]
        try:
            size = file.stat().st_size
        except FileNotFoundError:
            return f"{entry['path']} is missing"
        if size != entry["size_bytes"]:
            return f"{entry['path']} has {size} bytes instead of {entry['size_bytes']}"
        if _hash(file) != entry["digest"]:
            return f"{entry['path']} does not match its digest"
    return None


def supersede_beyond(checkpoints_dir: Path, step: int) -> list[Path]:
    """Move checkpoints beyond a step to `superseded/`: a run that resumes at `step` will write them anew."""
    beyond = [folder for folder in _folders(checkpoints_dir) if step_of(folder) > step]
    return [_supersede(folder) for folder in beyond]


def retain(checkpoints_dir: Path, *, limit: int | None, keep: Iterable[str] = ()) -> list[str]:
    """Delete what a newer manifest made superfluous.

    The newest whole checkpoint and those named in `keep` stay, whatever the limit; a folder without a manifest is
    left alone, since it may be about to get one. What lies in `superseded/` goes once the run has passed it.

    Args:
        checkpoints_dir: The folder that holds the checkpoints.
        limit: How many to keep; None keeps all.
        keep: Names of checkpoints that must stay: the best, those being uploaded.

    Returns:
        Names of the deleted folders.
    """
    whole = list_whole(checkpoints_dir)
    if not whole:
        return []
    newest = whole[-1]
    doomed = [old for old in _folders(checkpoints_dir / SUPERSEDED) if step_of(old) <= newest.step]
    if limit is not None and limit > 0:
        protected = {newest.path.name, *keep}
        surplus = len(whole) - max(limit, sum(item.path.name in protected for item in whole))
        free = [item.path for item in whole if item.path.name not in protected]
        doomed += free[: max(surplus, 0)]
    for folder in doomed:
        # The manifest goes first: a half deleted checkpoint must not look whole.
        (folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    return [folder.name for folder in doomed]


def step_of(folder: Path) -> int:
    """Return the step in a checkpoint's name; -1 if it has none."""
    match = _NAME.match(folder.name)
    return int(match.group(1)) if match else -1


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted((path for path in parent.iterdir() if step_of(path) >= 0 and path.is_dir()), key=step_of)


def _manifest(folder: Path) -> dict[str, Any] | None:
    manifest = read_json(folder / MANIFEST)
    if manifest is None or not isinstance(manifest.get("files"), list):
        return None
    return manifest if manifest.get("digest") == _manifest_digest(manifest["files"]) else None


def _files(folder: Path) -> Iterator[Path]:
    # A leading dot is a part file of a manifest that was never renamed.
    ours = (folder / MANIFEST, *folder.glob(f".{MANIFEST}.*"))
    return iter(sorted(path for path in folder.rglob("*") if path.is_file() and path not in ours))


def _hash(file: Path, *, sync: bool = False) -> str:
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
        if sync:
            os.fsync(stream.fileno())
    return digest.hexdigest()


def _manifest_digest(files: list[dict[str, Any]]) -> str:
    rows = sorted([file["path"], file["digest"], file["size_bytes"]] for file in files)
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()


def _described(folder: Path, manifest: dict[str, Any]) -> Checkpoint:
    return Checkpoint(folder, step_of(folder), str(manifest["digest"]), int(manifest["size_bytes"]))


def _supersede(folder: Path) -> Path:
    aside = folder.parent / SUPERSEDED
    aside.mkdir(exist_ok=True)
    target, count = aside / folder.name, 0
    while target.exists():
        count += 1
        target = aside / f"{folder.name}.{count}"
    folder.rename(target)
    sync_folder(folder.parent)
    return target
