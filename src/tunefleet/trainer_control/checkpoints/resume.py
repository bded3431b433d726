"""Which checkpoint a launch resumes from, and which are deleted: never one that a resume may still need.

Looking for the newest valid checkpoint moves broken ones aside, so only one process may look. The decision is stored in
the job folder because the ranks are not connected yet.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import read_json, write_json
from .manifest import (
    MANIFEST,
    SUPERSEDED,
    Checkpoint,
    find_newest,
    find_step,
    list_complete,
    list_folders,
    step_of,
    supersede_beyond,
)

logger = logging.getLogger(__name__)
FILE = "resume.json"
_LOOK_S = 0.02
_PATIENCE_S = 3600.0
_run_logger = logging.getLogger("tunefleet.run")


class ResumeError(Exception):
    """The requested checkpoint cannot be resumed from."""


@dataclass(frozen=True)
class Decision:
    """Where a launch starts.

    Args:
        checkpoint: The checkpoint that it resumes from; None starts from scratch.
        notes: Events for the user: name, message, level.
    """

    checkpoint: Checkpoint | None
    notes: tuple[tuple[str, str, str], ...] = ()


def decide(folder: Path, job: dict[str, Any]) -> Decision:
    """Choose the checkpoint and move later ones aside; for rank 0 only.

    Args:
        folder: The job folder, whose lock this process holds.
        job: Its `job.json`. A `from_step` counts once per attempt: a relaunch continues from its own checkpoints.

    Raises:
        ResumeError: If the checkpoint of `from_step` is missing or broken.
    """
    checkpoints = folder / "checkpoints"
    wanted, attempt = job.get("from_step"), job.get("attempt")
    before = read_json(folder / FILE) or {}
    notes: list[tuple[str, str, str]] = []
    # A relaunch of the same attempt resumes from its own newest checkpoint, not from `from_step` again.
    again = (before.get("attempt"), before.get("from_step")) == (attempt, wanted) and not job.get("gang")
    if job.get("gang") and wanted is None:
        # All nodes start from scratch, whatever one of them still has from an earlier attempt.
        found = None
        supersede_beyond(checkpoints, -1)
    elif wanted is None or again:
        faults: list[str] = []
        found = find_newest(checkpoints, on_fault=faults.append)
        notes += [("checkpoint.broken", f"{fault}; using the checkpoint before it.", "warning") for fault in faults]
    else:
        found, fault = find_step(checkpoints, int(wanted))
        if found is None:
            raise ResumeError(f"The training run cannot be resumed from step {wanted}: {fault}.")
    for path in supersede_beyond(checkpoints, found.step) if found else ():
        text = f"{path.name} is later than the checkpoint that is resumed."
        notes.append(("checkpoint.superseded", text, "info"))
    fields = {"launch": job["launch"], "attempt": attempt, "from_step": wanted}
    chosen = None if found is None else {"name": found.path.name, "digest": found.digest, "bytes": found.size_bytes}
    # Written last: the other ranks wait for this file.
    write_json(folder / FILE, {**fields, "step": found.step if found else 0, "checkpoint": chosen}, sync=True)
    return Decision(found, tuple(notes))


def await_decision(folder: Path, job: dict[str, Any]) -> Decision:
    """Return rank 0's decision for this launch; verifying large checkpoints may take it minutes.

    Raises:
        ResumeError: If rank 0 decides nothing.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while (decision := read_json(folder / FILE) or {}).get("launch") != job["launch"]:
        if time.monotonic() > deadline:
            raise ResumeError("Rank 0 has not decided which checkpoint is resumed.")
        time.sleep(_LOOK_S)
    chosen = decision["checkpoint"]
    if chosen is None:
        return Decision(None)
    path = folder / "checkpoints" / chosen["name"]
    return Decision(Checkpoint(path, int(decision["step"]), chosen["digest"], int(chosen["bytes"])))


def first_step(folder: Path, resumed: Checkpoint | None) -> int:
    """Return the step after which a launch reports; records of earlier launches beyond it are superseded.

    A launch of a job that has its result does and supersedes nothing, whether there is a checkpoint or not.

    Args:
        resumed: The checkpoint that the launch resumes from.
    """
    begins = resumed.step if resumed else 0
    return max(begins, _last_reported(folder)) if (folder / "responses.json").exists() else begins


def _last_reported(folder: Path) -> int:
    last = 0
    for file in (folder / "journal").glob("*.jsonl"):
        # Without the last element: it is empty, or a torn line.
        for line in file.read_bytes().split(b"\n")[:-1]:
            # A full disk may have truncated a line.
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                last = max(last, int(record["step"]) if record.get("type") == "metric" else 0)
    return last


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
    decision = read_json(folder / FILE)
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
        _run_logger.warning("%s is outside of the job folder: its checkpoints stay on this machine", output_dir)
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
        _run_logger.warning("%s is not in the folder where the script saves, and is not resumed from", path.name)
        return None
    return Checkpoint(path.resolve(), int(decision["step"]), str(chosen["digest"]), int(chosen["bytes"]))
