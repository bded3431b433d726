"""Small files that must be whole: written beside, synced, renamed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_DRAFT: Final = ".draft"


def write_synced(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write a file so that after a crash or a power cut it is the old one or the new one, never a torn one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}{_DRAFT}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    _sync_folder(path.parent)


def remove_drafts(folder: Path) -> None:
    """Remove what a process left that was killed while it wrote a file in this folder; nobody else may be writing."""
    for draft in folder.glob(f".*{_DRAFT}"):
        draft.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
