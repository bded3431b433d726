"""Finds the jobs of this user (running, dead, or on another machine with the same home), and removes dead ones."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from tunefleet.errors import InputError, NotFoundError
from tunefleet.runtime import locks
from tunefleet.runtime.exit_classification import read_status
from tunefleet.schemas.control import Endpoint
from tunefleet.schemas.job_folder import JobFolder, JobStatus
from tunefleet.trainer_control import process_identity
from tunefleet.trainer_control.files import read_json
from tunefleet.trainer_control.journal.status import FINAL_STATES

# Job folders of `tunefleet run`, relative to its working directory.
RUNS_DIR = Path("tunefleet-runs")
_OURS = ("status.json", "commands.json", "overrides.json", "job", "control")
_LOCK = ".lock"
_FRESH_S = 60.0


@dataclass(frozen=True, slots=True)
class LocalJob:
    """A job with an endpoint folder or a job folder.

    Args:
        folder: Its endpoint folder; None if only its job folder is left.
        endpoint: Its endpoint; None if it has been removed.
        live: Whether its process is running; None if unknown on this machine.
    """

    job_id: str
    folder: Path | None
    endpoint: Endpoint | None
    live: bool | None
    job_folder: Path | None

    @property
    def here(self) -> bool:
        """Whether it is a job of this machine."""
        return self.endpoint is None or self.endpoint.hostname in (None, process_identity.hostname())

    def last_status(self) -> JobStatus | None:
        """Return the last status that the job wrote; None if there is none."""
        for folder in (self.job_folder, self.folder):
            status = read_status(JobFolder(folder)) if folder is not None else None
            if status is not None:
                return status
        return None


def find_endpoint(endpoints_dir: Path, job_id: str) -> Endpoint | None:
    """Return the verified endpoint of a running job on this machine, or None."""
    endpoint = _endpoint(endpoints_dir / job_id)
    return endpoint if endpoint is not None and is_surely_alive(endpoint) else None


def withdraw_endpoint(endpoints_dir: Path, job_id: str, job_folder: Path) -> None:
    """Remove the endpoint of a killed trainer."""
    # Only if it belongs to this job folder, and its process is gone: another run may have the same job id.
    folder = endpoints_dir / job_id
    data = read_json(folder / "endpoint.json")
    ours = data is not None and data.get("job_folder") == str(job_folder.resolve())
    if not ours or find_endpoint(endpoints_dir, job_id) is not None:
        return
    for name in ("endpoint.json", "status.json", "job"):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # contains other files
        folder.rmdir()


def list_jobs(endpoints_dir: Path) -> list[LocalJob]:
    """Return the jobs with an endpoint: running ones first, newest first."""
    found = [job for folder in _folders(endpoints_dir) if (job := _found(folder)) is not None]
    return sorted(found, key=lambda job: (job.live is not True, -(job.endpoint.started_at if job.endpoint else 0)))


def paused_jobs(endpoints_dir: Path, *, runs_dir: Path = RUNS_DIR) -> list[LocalJob]:
    """Return the jobs that are paused."""
    ended = {job.job_id: job for job in (*_ended_here(endpoints_dir), *_ended_runs(runs_dir))}
    known = {job.job_id for job in list_jobs(endpoints_dir)}
    rest = [job for name, job in ended.items() if name not in known]
    return [job for job in rest if (status := job.last_status()) is not None and status.state == "paused"]


def find_job(endpoints_dir: Path, wanted: str, *, runs_dir: Path = RUNS_DIR) -> LocalJob:
    """Return a job by its id, a unique prefix of it, or its job folder.

    Raises:
        InputError: If a prefix matches several jobs.
        NotFoundError: If no job matches.
    """
    jobs = {job.job_id: job for job in (*_ended_here(endpoints_dir), *_ended_runs(runs_dir))}
    jobs |= {job.job_id: job for job in list_jobs(endpoints_dir)}
    if wanted in jobs:
        return jobs[wanted]
    folder = Path(wanted)
    if "/" in wanted and (folder / "status.json").is_file():
        return _of_folder(folder)
    matching = [job for name, job in jobs.items() if wanted and name.startswith(wanted)]
    # A running job wins over ended ones with the same prefix.
    chosen = [job for job in matching if job.live] or matching
    if len(chosen) > 1:
        raise InputError(f"{wanted} matches {len(chosen)} jobs: {_names(chosen)}.", hint="Use a longer prefix.")
    if not chosen:
        raise NotFoundError(
            f"Job {wanted} not found.",
            hint="List jobs with `tunefleet control list`; a job that is still loading is not listed yet.",
        )
    return chosen[0]


def is_surely_alive(endpoint: Endpoint) -> bool:
    """Whether the process that wrote an endpoint is certainly running: only then a token is sent to it."""
    # Boot id and start time: after a reboot or a reused pid, the port may belong to any other process.
    same_machine = (
        endpoint.ended_at is None
        and endpoint.hostname == process_identity.hostname()
        and endpoint.boot_id == process_identity.boot_id()
    )
    started_at = process_identity.process_started_at(endpoint.pid)
    return same_machine and started_at is not None and started_at == endpoint.process_started_at


def is_surely_dead(endpoint: Endpoint) -> bool:
    """Whether the process that wrote an endpoint is certainly gone: only then its files are removed."""
    if endpoint.hostname != process_identity.hostname():
        return False
    if endpoint.ended_at is not None:
        return True
    boot = process_identity.boot_id()
    if None not in (boot, endpoint.boot_id) and boot != endpoint.boot_id:
        return True
    started_at = process_identity.process_started_at(endpoint.pid)
    if started_at is None:
        return not _pid_is_taken(endpoint.pid)
    return endpoint.process_started_at is not None and started_at != endpoint.process_started_at


def _pid_is_taken(pid: int) -> bool:
    """Whether any process of any user has this pid."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    # A zombie has ended: with /proc the caller has ruled that out; without /proc it counts as running.
    return not Path(f"/proc/{os.getpid()}").exists()


def _found(folder: Path) -> LocalJob | None:
    endpoint = _endpoint(folder)
    if endpoint is None:
        return None
    live = True if is_surely_alive(endpoint) else False if is_surely_dead(endpoint) else None
    job_folder = Path(endpoint.job_folder) if endpoint.job_folder else None
    return LocalJob(endpoint.job_id, folder, endpoint, live, job_folder)


def _endpoint(folder: Path) -> Endpoint | None:
    data = read_json(folder / "endpoint.json")
    try:
        endpoint = Endpoint.model_validate(data) if data is not None else None
    except ValidationError:
        return None
    # The job id in the file must match its folder, since it is joined to a path later.
    return endpoint if endpoint is not None and endpoint.job_id == folder.name else None


def _ended_runs(runs_dir: Path) -> Iterable[LocalJob]:
    return [_of_folder(file.parent) for file in sorted(runs_dir.glob("*/job.json"))]


def _ended_here(endpoints_dir: Path) -> Iterable[LocalJob]:
    # A job leaves its last status in the endpoint folder when it ends.
    left = [folder for folder in _folders(endpoints_dir) if not (folder / "endpoint.json").exists()]
    return [LocalJob(path.name, path, None, False, None) for path in left if (path / "status.json").is_file()]


def _of_folder(folder: Path) -> LocalJob:
    return LocalJob(folder.resolve().name, None, None, False, folder.resolve())


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())


def _names(jobs: list[LocalJob]) -> str:
    return ", ".join(job.job_id for job in jobs[:5]) + (" …" if len(jobs) > 5 else "")


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
