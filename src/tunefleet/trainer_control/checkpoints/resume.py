"""Which checkpoint a launch resumes from: decided once by rank 0, before any library is loaded, and told to the others.

Looking for the newest valid one sets broken ones aside, so only one process may look; the decision lies in the job
folder because the ranks have not met yet.
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
    """The checkpoint that was asked for cannot be resumed from."""


@dataclass(frozen=True)
class Decision:
    """Where a launch begins.

    Args:
        checkpoint: What it resumes from; None starts from nothing.
        notes: What a person wants to know of it: name of the event, sentence, level.
    """

    checkpoint: Checkpoint | None
    notes: tuple[tuple[str, str, str], ...] = ()


def decide(folder: Path, job: dict[str, Any]) -> Decision:
    """Choose the checkpoint and move what lies beyond it aside; for the one process that reports.

    Args:
        folder: The job folder, whose lock this process holds.
        job: Its `job.json`. A `from_step` counts once an attempt: what is launched again goes on from where it was.

    Raises:
        ResumeError: If `from_step` names one that is not there or is broken.
    """
    checkpoints = folder / "checkpoints"
    wanted, attempt = job.get("from_step"), job.get("attempt")
    before = read_json(folder / FILE) or {}
    notes: list[tuple[str, str, str]] = []
    again = (before.get("attempt"), before.get("from_step")) == (attempt, wanted) and not job.get("gang")
    if job.get("gang") and wanted is None:
        # All nodes begin anew, whatever one of them has from an earlier try.
        found = None
        supersede_beyond(checkpoints, -1)
    elif wanted is None or again:
        faults: list[str] = []
        found = find_newest(checkpoints, on_fault=faults.append)
        notes += [("checkpoint.broken", f"{fault}; the checkpoint before it is used.", "warning") for fault in faults]
    else:
        found, fault = find_step(checkpoints, int(wanted))
        if found is None:
            raise ResumeError(f"The training cannot be resumed from step {wanted}: {fault}.")
    for path in supersede_beyond(checkpoints, found.step) if found else ():
        text = f"{path.name} lies beyond the checkpoint that is resumed."
        notes.append(("checkpoint.superseded", text, "info"))
    fields = {"launch": job["launch"], "attempt": attempt, "from_step": wanted}
    chosen = None if found is None else {"name": found.path.name, "digest": found.digest, "bytes": found.size_bytes}
    write_json(folder / FILE, {**fields, "step": found.step if found else 0, "checkpoint": chosen}, sync=True)
    return Decision(found, tuple(notes))


def await_decision(folder: Path, job: dict[str, Any]) -> Decision:
    """Return what rank 0 decides for this launch; verifying large checkpoints may take it minutes.

    Raises:
        ResumeError: If it decides nothing.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while (said := read_json(folder / FILE) or {}).get("launch") != job["launch"]:
        if time.monotonic() > deadline:
            raise ResumeError("Rank 0 has not said which checkpoint is resumed.")
        time.sleep(_LOOK_S)
    chosen = said["checkpoint"]
    if chosen is None:
        return Decision(None)
    path = folder / "checkpoints" / chosen["name"]
    return Decision(Checkpoint(path, int(said["step"]), chosen["digest"], int(chosen["bytes"])))


def first_step(folder: Path, resumed: Checkpoint | None) -> int:
    """Return the step after which a launch reports; what earlier launches have reported beyond it is superseded.

    A launch of a job that has its result does nothing, and supersedes nothing, whether there is a checkpoint or not.

    Args:
        resumed: The checkpoint that the launch resumes from.
    """
    begins = resumed.step if resumed else 0
    return max(begins, _last_reported(folder)) if (folder / "responses.json").exists() else begins


def _last_reported(folder: Path) -> int:
    last = 0
    for file in (folder / "journal").glob("*.jsonl"):
        for line in file.read_bytes().split(b"\n")[:-1]:
            # A full disk may have torn a line.
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                last = max(last, int(record["step"]) if record.get("type") == "metric" else 0)
    return last
