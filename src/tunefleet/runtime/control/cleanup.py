"""What dead jobs left in the endpoint folder, and its removal; never beyond that folder, never through a link."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from tunefleet.runtime import locks
from tunefleet.runtime.control.discovery import FoundJob, is_surely_dead, list_jobs
from tunefleet.runtime.exit_classification import read_status
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control.files import read_json
from tunefleet.trainer_control.journal.status import FINAL_STATES

_OURS = ("status.json", "commands.json", "overrides.json", "job", "control")
_LOCK = ".lock"
_FRESH_S = 60.0


@dataclass(frozen=True, slots=True)
class Leftover:
    """A folder that nobody needs any more.

    Args:
        started_at: When it began, or if only its end is known, ended; seconds since the epoch.
    """

    folder: Path
    job_id: str | None = None
    pid: int = 0
    started_at: float = 0.0


def find_leftovers(endpoints_dir: Path) -> list[Leftover]:
    """Return the folders of surely dead jobs of this machine, and those that hold no endpoint any more."""
    dead = [_leftover(job) for job in list_jobs(endpoints_dir) if job.endpoint is not None and _is_dead(job)]
    if not endpoints_dir.is_dir():
        return []
    rest = [path for path in sorted(endpoints_dir.iterdir()) if path.is_dir() and not path.is_symlink()]
    return [*dead, *(_ended(path) for path in rest if _is_abandoned(path))]


def remove_leftover(item: Leftover) -> bool:
    """Remove a folder; False if it came to life, or somebody keeps other files there."""
    folder = item.folder
    if folder.is_symlink() or not _is_still(item):
        return False
    control = folder / "control"
    if control.is_dir() and not control.is_symlink():
        shutil.rmtree(control)
    for name in ("endpoint.json", *_OURS):
        path = folder / name
        if path.is_symlink() or path.is_file():  # of a link, the link
            path.unlink(missing_ok=True)
    for part in (*folder.glob(".*.json.*"), folder / _LOCK):  # what a killed process was about to rename
        part.unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


def _leftover(job: FoundJob) -> Leftover:
    if job.endpoint is None or job.folder is None:
        raise ValueError(job.job_id)
    return Leftover(job.folder, job.job_id, job.endpoint.pid, job.endpoint.started_at)


def _ended(folder: Path) -> Leftover:
    """Describe what a job left that ended properly: its last status, or nothing."""
    status = read_status(JobFolder(folder))
    return Leftover(folder) if status is None else Leftover(folder, folder.name, status.pid, status.at)


def _is_dead(job: FoundJob) -> bool:
    return job.endpoint is not None and is_surely_dead(job.endpoint)


def _is_still(item: Leftover) -> bool:
    # Between question and answer the job may have been started again.
    if not (item.folder / "endpoint.json").exists():
        return _is_free(item.folder)
    written = read_json(item.folder / "endpoint.json") or {}
    same = (written.get("pid"), written.get("started_at")) == (item.pid, item.started_at)
    return same and _is_free(item.folder)


def _fresh_s(folder: Path) -> float:
    # A job that is just being made has no status yet; one that has a final one is made no more.
    status = read_status(JobFolder(folder))
    return 0.0 if status is not None and status.state in FINAL_STATES else _FRESH_S


def _is_free(folder: Path) -> bool:
    return not locks.is_held(folder / _LOCK)


def _is_abandoned(folder: Path) -> bool:
    """Tell whether a folder holds no endpoint, and only what ours are made of; one that is being made is young."""
    if (
        (folder / "endpoint.json").exists()
        or not _is_free(folder)
        or time.time() - folder.stat().st_mtime < _fresh_s(folder)
    ):
        return False
    return all(path.name in _OURS or path.name.startswith(".") for path in folder.iterdir())
