"""Which checkpoints are deleted, and when: never one that a resume may still need."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from .checkpoints import MANIFEST, SUPERSEDED, list_folders, list_whole, step_of
from .files import read_json


def kept_by_others(job_folder: Path, reasons: Iterable[str] = ("uploading", "pinned")) -> tuple[str, ...]:
    """Return the names in `keep.json`: checkpoints that somebody reads just now, or has pinned."""
    keep = read_json(job_folder / "keep.json") or {}
    return tuple(str(name) for reason in reasons for name in keep.get(reason) or ())


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
    newest, protected = whole[-1], {whole[-1].path.name, *keep}
    passed = [old for old in list_folders(checkpoints_dir / SUPERSEDED) if step_of(old) <= newest.step]
    doomed = [old for old in passed if old.name not in keep]
    if limit is not None and limit > 0:
        surplus = len(whole) - max(limit, sum(item.path.name in protected for item in whole))
        free = [item.path for item in whole if item.path.name not in protected]
        doomed += free[: max(surplus, 0)]
    for folder in doomed:
        # The manifest goes first: a half deleted checkpoint must not look whole.
        (folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    return [folder.name for folder in doomed]
