"""Where a command that is a job saves, its checkpoints are those of the job.

A script chooses its own `output_dir`; whoever uploads, restores and supersedes checkpoints looks into `checkpoints` of
the job folder. So that becomes a link to where the script saves, and what a restore has put there moves along.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from .checkpoints import Checkpoint
from .files import read_json
from .resume import FILE as RESUME

logger = logging.getLogger("tunefleet.run")


def decided(folder: Path, job: dict[str, Any]) -> dict[str, Any] | None:
    """Return where the launch begins, if the job is one whose launches are told; `tunefleet run` tells none.

    Args:
        folder: The job folder.
        job: Its `job.json`.
    """
    said = read_json(folder / RESUME)
    return said if said is not None and said.get("launch") == job["launch"] else None


def adopt(folder: Path, output_dir: Path, said: dict[str, Any]) -> Checkpoint | None:
    """Make `checkpoints` of the job folder a link to where the first training saves; return what it begins with.

    Args:
        folder: The job folder.
        output_dir: The Trainer's.
        said: What `decided` has returned.

    Raises:
        OSError: If something cannot be moved.
    """
    root, link = folder.resolve(), folder / "checkpoints"
    if not output_dir.is_relative_to(root):
        logger.warning("%s lies outside of the job's folder: its checkpoints stay on this machine", output_dir)
        return _chosen(link, said)
    output_dir.mkdir(parents=True, exist_ok=True)
    if link.resolve() != output_dir:
        if link.exists():
            _move(link.resolve(), output_dir)
        if link.is_symlink():
            link.unlink()
        elif link.exists():
            link.rmdir()
        link.symlink_to(os.path.relpath(output_dir, root))
    return _chosen(output_dir, said)


def _move(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()):
        if (path.name.startswith("checkpoint-") or source.name == "checkpoints") and not (target / path.name).exists():
            path.rename(target / path.name)


def _chosen(place: Path, said: dict[str, Any]) -> Checkpoint | None:
    chosen = said.get("checkpoint")
    if not isinstance(chosen, dict):
        return None
    path = place / str(chosen["name"])
    if not path.is_dir():
        logger.warning("%s is not where the script saves, and is not resumed from", path.name)
        return None
    return Checkpoint(path.resolve(), int(said["step"]), str(chosen["digest"]), int(chosen["bytes"]))
