"""The jobs of this machine's user: which live, which are dead, which are another machine's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from tunefleet.errors import InputError, NotFoundError
from tunefleet.runtime.exit_classification import read_status
from tunefleet.schemas.control import Endpoint
from tunefleet.schemas.job_folder import JobFolder, JobStatus
from tunefleet.trainer_control import process_identity
from tunefleet.trainer_control.files import read_json

# Where `tunefleet run` puts its job folders, below the folder that it was started in.
RUNS_DIR = Path("tunefleet-runs")


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job that has, or had, an endpoint folder, or a job folder of its own.

    Args:
        folder: Its endpoint folder; None if only its job folder is left.
        endpoint: What it says about itself; None if it says nothing any more.
        live: Whether its process lives; None if that cannot be told from here.
    """

    job_id: str
    folder: Path | None
    endpoint: Endpoint | None
    live: bool | None
    job_folder: Path | None

    @property
    def here(self) -> bool:
        """Whether it is, or was, a job of this machine."""
        return self.endpoint is None or self.endpoint.hostname in (None, process_identity.hostname())

    def last_status(self) -> JobStatus | None:
        """Return what the job last wrote about itself; None if that is gone."""
        for folder in (self.job_folder, self.folder):
            status = read_status(JobFolder(folder)) if folder is not None else None
            if status is not None:
                return status
        return None


def find_endpoint(endpoints_dir: Path, job_id: str) -> Endpoint | None:
    """Return the endpoint of a live job on this machine, or None if there is none that can be trusted."""
    endpoint = _endpoint(endpoints_dir / job_id)
    return endpoint if endpoint is not None and is_surely_alive(endpoint) else None


def withdraw_endpoint(endpoints_dir: Path, job_id: str, job_folder: Path) -> None:
    """Remove what a killed trainer left in the endpoint folder; a live one, or one of another folder, is left alone."""
    folder = endpoints_dir / job_id
    data = read_json(folder / "endpoint.json")
    ours = data is not None and data.get("job_folder") == str(job_folder.resolve())
    if not ours or find_endpoint(endpoints_dir, job_id) is not None:
        return
    for name in ("endpoint.json", "status.json", "job"):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # somebody keeps files of their own there
        folder.rmdir()


def list_jobs(endpoints_dir: Path) -> list[FoundJob]:
    """Return the jobs that made themselves findable: live ones first, newest first."""
    found = [job for folder in _folders(endpoints_dir) if (job := _found(folder)) is not None]
    return sorted(found, key=lambda job: (job.live is not True, -(job.endpoint.started_at if job.endpoint else 0)))


def paused_jobs(endpoints_dir: Path, *, runs_dir: Path = RUNS_DIR) -> list[FoundJob]:
    """Return the jobs that were paused and not started again since."""
    ended = {job.job_id: job for job in (*_ended_here(endpoints_dir), *_ended_runs(runs_dir))}
    known = {job.job_id for job in list_jobs(endpoints_dir)}
    rest = [job for name, job in ended.items() if name not in known]
    return [job for job in rest if (status := job.last_status()) is not None and status.state == "paused"]


def find_job(endpoints_dir: Path, wanted: str, *, runs_dir: Path = RUNS_DIR) -> FoundJob:
    """Return a job by its id, by the unique start of it, or by its job folder."""
    jobs = {job.job_id: job for job in (*_ended_here(endpoints_dir), *_ended_runs(runs_dir))}
    jobs |= {job.job_id: job for job in list_jobs(endpoints_dir)}
    if wanted in jobs:
        return jobs[wanted]
    folder = Path(wanted)
    if "/" in wanted and (folder / "status.json").is_file():
        return _of_folder(folder)
    matching = [job for name, job in jobs.items() if wanted and name.startswith(wanted)]
    # Of several that begin so, the one that lives is meant.
    chosen = [job for job in matching if job.live] or matching
    if len(chosen) > 1:
        raise InputError(
            f"{wanted} is the start of {len(chosen)} jobs: {_names(chosen)}.", hint="Type more of the one you mean."
        )
    if not chosen:
        raise NotFoundError(
            f"There is no job {wanted}.",
            hint="See the jobs with `tunefleet control list`; one that still loads is not there yet.",
        )
    return chosen[0]


def is_surely_alive(endpoint: Endpoint) -> bool:
    """Tell whether the process that wrote an endpoint lives, beyond doubt: only then it is given a token."""
    same_machine = (
        endpoint.ended_at is None
        and endpoint.hostname == process_identity.hostname()
        and endpoint.boot_id == process_identity.boot_id()
    )
    started_at = process_identity.process_started_at(endpoint.pid)
    return same_machine and started_at is not None and started_at == endpoint.process_started_at


def is_surely_dead(endpoint: Endpoint) -> bool:
    """Tell whether the process that wrote an endpoint is gone, beyond doubt: only then its files are removed."""
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
    """Tell whether any process has this number, ours or not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    # A zombie has ended; /proc told that before, and without /proc it counts as alive.
    return not Path(f"/proc/{os.getpid()}").exists()


def _found(folder: Path) -> FoundJob | None:
    endpoint = _endpoint(folder)
    if endpoint is None:
        return None
    live = True if is_surely_alive(endpoint) else False if is_surely_dead(endpoint) else None
    job_folder = Path(endpoint.job_folder) if endpoint.job_folder else None
    return FoundJob(endpoint.job_id, folder, endpoint, live, job_folder)


def _endpoint(folder: Path) -> Endpoint | None:
    data = read_json(folder / "endpoint.json")
    try:
        endpoint = Endpoint.model_validate(data) if data is not None else None
    except ValidationError:
        return None
    # What the file says about its own name must be where it lies: it is joined to a path later.
    return endpoint if endpoint is not None and endpoint.job_id == folder.name else None


def _ended_runs(runs_dir: Path) -> Iterable[FoundJob]:
    return [_of_folder(file.parent) for file in sorted(runs_dir.glob("*/job.json"))]


def _ended_here(endpoints_dir: Path) -> Iterable[FoundJob]:
    # A job that made itself findable leaves its last status there when it ends.
    left = [folder for folder in _folders(endpoints_dir) if not (folder / "endpoint.json").exists()]
    return [FoundJob(path.name, path, None, False, None) for path in left if (path / "status.json").is_file()]


def _of_folder(folder: Path) -> FoundJob:
    return FoundJob(folder.resolve().name, None, None, False, folder.resolve())


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())


def _names(jobs: list[FoundJob]) -> str:
    return ", ".join(job.job_id for job in jobs[:5]) + (" …" if len(jobs) > 5 else "")
