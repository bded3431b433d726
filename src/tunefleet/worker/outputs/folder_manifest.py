"""`manifest.json` of a job folder: expected and existing files."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from tunefleet.artifacts import hash_file
from tunefleet.schemas.compat.task_results import (
    ALWAYS_REQUIRED,
    MANIFEST_NAME,
    RESULT_NAMES,
    ManifestEntry,
    TaskManifest,
)

_LOG: Final = "train.log"
_SHOWN: Final = ("final_lora", "final_model", "checkpoints", *RESULT_NAMES)
_ARCHIVES: Final = "*.tar.gz"


def describe(task_id: str, root: Path, required: Iterable[str]) -> TaskManifest:
    """Return the manifest of a job folder; reads single files to compute their digests."""
    wanted = dict.fromkeys([*ALWAYS_REQUIRED, *required])
    existing = [name for name in _SHOWN if (root / name).exists()]
    existing += [path.name for path in sorted(root.glob(_ARCHIVES))]
    names = sorted({*wanted, *existing} - {MANIFEST_NAME})
    entries = tuple(_entry(root, name, required=name in wanted) for name in names)
    return TaskManifest(task_id=task_id, generated_at=datetime.now(UTC), entries=entries)


def _entry(root: Path, name: str, *, required: bool) -> ManifestEntry:
    # `logs` is the protocol's name for the log, which is a single file here.
    path = root / (_LOG if name == "logs" and not (root / name).exists() else name)
    relative = path.relative_to(root).as_posix()
    if not path.exists():
        return ManifestEntry(name=name, path=relative, type=_type(name, path), required=required, status="missing")
    status = path.stat()
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return ManifestEntry(
        name=name,
        path=relative,
        type=_type(name, path),
        required=required,
        status="present",
        updated_at=datetime.fromtimestamp(status.st_mtime, UTC),
        size=sum(file.stat().st_size for file in files),
        sha256=hash_file(path)[0] if path.is_file() else None,
        file_count=len(files) if path.is_dir() else None,
    )


def _type(name: str, path: Path) -> Literal["result", "logs", "artifact", "directory"]:
    if name in RESULT_NAMES:
        return "result"
    if name == "logs":
        return "logs"
    return "directory" if path.is_dir() or "." not in name else "artifact"
