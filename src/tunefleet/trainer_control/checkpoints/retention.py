"""Which checkpoints are deleted, and when: never one that a resume may still need."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..files import read_json
from .manifest import MANIFEST, SUPERSEDED, Checkpoint, list_complete, list_folders, step_of
from .resume import FILE as RESUME

logger = logging.getLogger("tunefleet.run")


def protected_names(job_folder: Path, reasons: Iterable[str] = ("uploading", "pinned")) -> tuple[str, ...]:
    """Return the names in `keep.json`: checkpoints that are being uploaded, or are pinned."""
    keep = read_json(job_folder / "keep.json") or {}
    return tuple(str(name) for reason in reasons for name in keep.get(reason) or ())


def retain(checkpoints_dir: Path, *, limit: int | None, keep: Iterable[str] = ()) -> list[str]:
    """Delete checkpoints that a newer manifest made superfluous.

    The newest complete checkpoint and those named in `keep` stay, whatever the limit. A folder without a manifest is
    left alone, since it may be about to get one. Those in `superseded/` are deleted once the run has passed their step.

    Args:
        checkpoints_dir: The folder that holds the checkpoints.
        limit: How many to keep; None keeps all.
        keep: Names of checkpoints that must stay: the best one, those being uploaded.

    Returns:
        Names of the deleted folders.
    """
    whole = list_complete(checkpoints_dir)
    if not whole:
        return []
    newest, protected = whole[-1], {whole[-1].path.name, *keep}
    passed = [old for old in list_folders(checkpoints_dir / SUPERSEDED) if step_of(old) <= newest.step]
    obsolete = [old for old in passed if old.name not in keep]
    if limit is not None and limit > 0:
        # Protected checkpoints count toward the limit.
        surplus = len(whole) - max(limit, sum(item.path.name in protected for item in whole))
        free = [item.path for item in whole if item.path.name not in protected]
        obsolete += free[: max(surplus, 0)]
    for folder in obsolete:
        # The manifest goes first: a partly deleted checkpoint must not look complete.
        (folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    return [folder.name for folder in obsolete]


def decided(folder: Path, job: dict[str, Any]) -> dict[str, Any] | None:
    """Return the decision where the launch starts, if the job has one; jobs of `tunefleet run` have none."""
    decision = read_json(folder / RESUME)
    return decision if decision is not None and decision.get("launch") == job["launch"] else None


def adopt(folder: Path, output_dir: Path, decision: dict[str, Any]) -> Checkpoint | None:
    """Make `checkpoints` of the job folder a link to the folder of the first training run; return its checkpoint.

    Args:
        output_dir: The Trainer's.
        said: The result of `decided`.

    Raises:
        OSError: If something cannot be moved.
    """
    root, link = folder.resolve(), folder / "checkpoints"
    if not output_dir.is_relative_to(root):
        logger.warning("%s is outside of the job folder: its checkpoints stay on this machine", output_dir)
        return _chosen(link, decision)
    output_dir.mkdir(parents=True, exist_ok=True)
    if link.resolve() != output_dir:
        # Checkpoints that were restored before the script chose its folder.
        if link.exists():
            _move(link.resolve(), output_dir)
        if link.is_symlink():
            link.unlink()
        elif link.exists():
            link.rmdir()
        # Relative, so that the job folder can be moved.
        link.symlink_to(os.path.relpath(output_dir, root))
    return _chosen(output_dir, decision)


def _move(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()):
        if (path.name.startswith("checkpoint-") or source.name == "checkpoints") and not (target / path.name).exists():
            path.rename(target / path.name)


def _chosen(place: Path, decision: dict[str, Any]) -> Checkpoint | None:
    chosen = decision.get("checkpoint")
    if not isinstance(chosen, dict):
        return None
    path = place / str(chosen["name"])
    if not path.is_dir():
        logger.warning("%s is not in the folder where the script saves, and is not resumed from", path.name)
        return None
    return Checkpoint(path.resolve(), int(decision["step"]), str(chosen["digest"]), int(chosen["bytes"]))
