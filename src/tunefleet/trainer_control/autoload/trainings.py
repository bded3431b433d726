"""The training runs of a script: where each one saves, and which checkpoint a resumed one starts from.

A script chooses its own `output_dir`, which may hold checkpoints of other runs. A checkpoint counts as this run's if
the run's journal names its digest, or, since a killed process may not have written that, if it was finished during the
previous launch. Nothing is moved or deleted here.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoints.manifest import MANIFEST, Checkpoint, invalid_reason, list_complete
from ..checkpoints.resume import adopt, decided
from ..files import read_json, write_json

logger = logging.getLogger("tunefleet.run")

FILE = "trainings.json"
# Ranks poll for the decision of rank 0; verifying large checkpoints may take it minutes, hence the long timeout.
_LOOK_S = 0.05
_PATIENCE_S = 3600.0


@dataclass(frozen=True)
class Training:
    """A training run that begins.

    Args:
        number: Its number among those of the launch, from 1.
        output_dir: The folder of its checkpoints.
        checkpoint: The checkpoint that it resumes from.
    """

    number: int
    output_dir: Path
    checkpoint: Checkpoint | None = None


def claim(folder: Path) -> int | None:
    """Lock a run for this process; None if another one trains. The kernel releases the lock when the process ends."""
    fd = os.open(folder / "attach" / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def begin(folder: Path, job: dict[str, Any], output_dir: Path, *, wanted: bool) -> Training:
    """Record a training run, with the checkpoint that it resumes from; for rank 0 only.

    Args:
        job: Its `job.json`; an `attempt` after the first one resumes.
        output_dir: The Trainer's.
        wanted: Whether to choose the checkpoint; False if the script names one itself.
    """
    known = recorded(folder)
    number = 1 + sum(item.get("launch") == job["launch"] for item in known)
    decision = decided(folder, job)
    # The first run of a launch follows the decision of the job; later ones can only be matched by their folder.
    if decision is not None and number == 1:
        found = adopt(folder, output_dir, decision)
        checkpoint = found if wanted and _alone_in(known, number, output_dir) else None
    else:
        resumes = wanted and (int(job.get("attempt", 1)) > 1 or decision is not None)
        lived_until = (job.get("spec") or {}).get("lived_until") or time.time()
        checkpoint = _newest(folder, known, number, output_dir, float(lived_until)) if resumes else None
    entry = {
        "number": number,
        "launch": job["launch"],
        "output_dir": str(output_dir),
        "checkpoint": None if checkpoint is None else _checkpoint_entry(checkpoint),
        "pid": os.getpid(),
        "at": time.time(),
    }
    # Durable before training starts: the other ranks and later launches rely on it.
    write_json(folder / FILE, {"trainings": [*known, entry]}, sync=True)
    return Training(number, output_dir, checkpoint)


def await_begin(folder: Path, launch: str, before: int) -> Training:
    """Return what rank 0 recorded for the training run that the ranks begin together.

    Args:
        before: How many training runs this process has had.

    Raises:
        TimeoutError: If rank 0 records nothing.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        ours = [item for item in recorded(folder) if item.get("launch") == launch]
        if len(ours) > before:
            item = ours[before]
            found = item["checkpoint"]
            checkpoint = Checkpoint(Path(found["path"]), *found["rest"]) if found else None
            return Training(before + 1, Path(item["output_dir"]), checkpoint)
        time.sleep(_LOOK_S)
    raise TimeoutError("Rank 0 has not started its training run.")


def recorded(folder: Path) -> list[dict[str, Any]]:
    """Return the training runs of all launches so far, oldest first."""
    found = (read_json(folder / FILE) or {}).get("trainings")
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _newest(
    folder: Path, known: list[dict[str, Any]], number: int, output_dir: Path, lived_until: float
) -> Checkpoint | None:
    earlier = [item for item in known if item.get("output_dir") == str(output_dir)]
    if not earlier or not _alone_in(known, number, output_dir):
        return None
    digests, began = _digests(folder), float(earlier[-1].get("at") or lived_until)
    # Newest first: only the chosen one has to be hashed completely.
    for checkpoint in reversed(list_complete(output_dir)):
        made_at = float((read_json(checkpoint.path / MANIFEST) or {}).get("at") or 0)
        if checkpoint.digest not in digests and not began <= made_at <= lived_until:
            continue
        fault = invalid_reason(checkpoint.path)
        if fault is None:
            return checkpoint
        logger.warning("Checkpoint %s is skipped: %s; using the checkpoint before it", checkpoint.path.name, fault)
    return None


def _alone_in(known: list[dict[str, Any]], number: int, output_dir: Path) -> bool:
    """Return whether the training run is the only one that saves in its folder."""
    if {item.get("number") for item in known if item.get("output_dir") == str(output_dir)} - {number}:
        logger.warning("Several training runs of this script save in %s; each starts from scratch", output_dir)
        return False
    return True


def _digests(folder: Path) -> set[str]:
    """Return the digests of all checkpoints that the run's journals name."""
    found: set[str] = set()
    for file in (folder / "journal").glob("*.jsonl"):
        with file.open("rb") as lines:
            for line in lines:
                # A cheap test first: a journal may have a gigabyte of metrics.
                if b'"checkpoint"' in line:
                    found |= _digest(line)
    return found


def _digest(line: bytes) -> set[str]:
    try:
        record = json.loads(line)
    except ValueError:
        return set()  # the torn last line of a killed process
    return {str(record["digest"])} if record.get("type") == "checkpoint" and record.get("digest") else set()


def _checkpoint_entry(checkpoint: Checkpoint) -> dict[str, Any]:
    return {"path": str(checkpoint.path), "rest": [checkpoint.step, checkpoint.digest, checkpoint.size_bytes]}
