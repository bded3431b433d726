"""Finds and removes endpoint folders of dead jobs; never outside of that folder, never through a link."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from tunefleet.runtime import locks
from tunefleet.runtime.control.discovery import LocalJob, is_surely_dead, list_jobs
from tunefleet.runtime.exit_classification import read_status
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control.files import read_json
from tunefleet.trainer_control.journal.status import FINAL_STATES

_OURS = ("status.json", "commands.json", "overrides.json", "job", "control")
_LOCK = ".lock"
_FRESH_S = 60.0


@dataclass(frozen=True, slots=True)
class StaleEndpoint:
    """An endpoint folder that is no longer needed.

    Args:
        started_at: When the job started, or ended if only that is known; seconds since the epoch.
    """

    folder: Path
    job_id: str | None = None
    pid: int = 0
    started_at: float = 0.0


def find_stale_endpoints(endpoints_dir: Path) -> list[StaleEndpoint]:
    """Return the folders of jobs of this machine that are certainly dead, and folders without an endpoint."""
    dead = [_leftover(job) for job in list_jobs(endpoints_dir) if job.endpoint is not None and _is_dead(job)]
    if not endpoints_dir.is_dir():
        return []
    rest = [path for path in sorted(endpoints_dir.iterdir()) if path.is_dir() and not path.is_symlink()]
    return [*dead, *(_ended(path) for path in rest if _is_abandoned(path))]


def remove_stale_endpoint(item: StaleEndpoint) -> bool:
    """Remove a folder; False if its job has been started again, or it contains other files."""
    folder = item.folder
    if folder.is_symlink() or not _is_still(item):
        return False
    control = folder / "control"
    if control.is_dir() and not control.is_symlink():
        shutil.rmtree(control)
    for name in ("endpoint.json", *_OURS):
        path = folder / name
        if path.is_symlink() or path.is_file():  # of a link, only the link itself
            path.unlink(missing_ok=True)
    for part in (*folder.glob(".*.json.*"), folder / _LOCK):  # temporary files of a killed process
        part.unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


def _leftover(job: LocalJob) -> StaleEndpoint:
    if job.endpoint is None or job.folder is None:
        raise ValueError(job.job_id)
    return StaleEndpoint(job.folder, job.job_id, job.endpoint.pid, job.endpoint.started_at)


def _ended(folder: Path) -> StaleEndpoint:
    """Return the leftover of a job that ended properly, from its last status if there is one."""
    status = read_status(JobFolder(folder))
    return StaleEndpoint(folder) if status is None else StaleEndpoint(folder, folder.name, status.pid, status.at)


def _is_dead(job: LocalJob) -> bool:
    return job.endpoint is not None and is_surely_dead(job.endpoint)


def _is_still(item: StaleEndpoint) -> bool:
    # The job may have been started again since the folder was listed.
    if not (item.folder / "endpoint.json").exists():
        return _is_free(item.folder)
    written = read_json(item.folder / "endpoint.json") or {}
    same = (written.get("pid"), written.get("started_at")) == (item.pid, item.started_at)
    return same and _is_free(item.folder)


def _fresh_s(folder: Path) -> float:
    # A job that is just being created has no status yet; one with a final status has ended.
    status = read_status(JobFolder(folder))
    return 0.0 if status is not None and status.state in FINAL_STATES else _FRESH_S


def _is_free(folder: Path) -> bool:
    return not locks.is_held(folder / _LOCK)


def _is_abandoned(folder: Path) -> bool:
    """Whether a folder has no endpoint, contains only known files, and is not just being created."""
    if (
        (folder / "endpoint.json").exists()
        or not _is_free(folder)
        or time.time() - folder.stat().st_mtime < _fresh_s(folder)
    ):
        return False
    return all(path.name in _OURS or path.name.startswith(".") for path in folder.iterdir())
