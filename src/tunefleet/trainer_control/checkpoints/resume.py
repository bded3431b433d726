"""Which checkpoint a launch resumes from: decided once by rank 0, before any library is loaded.

Looking for the newest valid checkpoint moves broken ones aside, so only one process may look. The decision is stored in
the job folder because the ranks are not connected yet.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import read_json, write_json
from .manifest import Checkpoint, find_newest, find_step, supersede_beyond

logger = logging.getLogger(__name__)

FILE = "resume.json"
_LOOK_S = 0.02
_PATIENCE_S = 3600.0


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
