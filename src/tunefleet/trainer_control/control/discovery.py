"""The endpoint folder: how a running job is found, and how a client verifies that it found the right process.

The folder only holds pointers: `endpoint.json` (mode 0600), a link `job` to the job folder, a copy of `status.json`. A
job id is a file name here, so an id that could leave the folder is refused.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import time
from pathlib import Path
from typing import Any

from .. import process_identity
from ..files import read_json, write_json
from ..process_identity import variable

_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MOST = 99
logger = logging.getLogger("tunefleet.control")


def safe_job_id(job_id: str) -> str:
    """Return the id if it is a valid file name.

    Raises:
        ValueError: If it is not.
    """
    if not _SAFE_ID.fullmatch(job_id):
        raise ValueError(f"{job_id!r} cannot be a job id: letters, digits, dot, dash and underscore, at most 128.")
    return job_id


class EndpointFolder:
    """`<endpoints>/<job_id>/` of this process.

    Args:
        endpoints_dir: The folder that holds one folder per job.
        job_folder: Its job folder, if it has one.
    """

    def __init__(self, endpoints_dir: Path, job_id: str, job_folder: Path | None = None) -> None:
        self.path = endpoints_dir / safe_job_id(job_id)
        self.job_id = job_id
        self.job_folder = job_folder

    @property
    def status_copy(self) -> Path:
        """Path of the copy of `status.json`."""
        return self.path / "status.json"

    def publish(self, *, host: str, port: int, token: str | None) -> dict[str, Any]:
        """Write `endpoint.json`, which makes the job discoverable; return its content."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        link = self.path / "job"
        if self.job_folder is not None:
            # A link of an earlier process may point to another job folder.
            link.unlink(missing_ok=True)
            link.symlink_to(self.job_folder)
        endpoint = {
            "job_id": self.job_id,
            "host": host,
            "port": port,
            "pid": os.getpid(),
            "started_at": time.time(),
            "process_started_at": process_identity.process_started_at(os.getpid()),
            "boot_id": process_identity.boot_id(),
            "hostname": process_identity.hostname(),
            "token": token,
            "job_folder": str(self.job_folder) if self.job_folder else None,
            "ended_at": None,
        }
        write_json(self.path / "endpoint.json", endpoint, mode=0o600)
        return endpoint

    def withdraw(self) -> None:
        """Remove the endpoint if it still belongs to this process, and the folder if it is empty then."""
        endpoint = read_json(self.path / "endpoint.json")
        if endpoint is None or endpoint.get("pid") != os.getpid():
            return
        for name in ("endpoint.json", "status.json", "job"):
            (self.path / name).unlink(missing_ok=True)
        try:
            self.path.rmdir()
        except OSError:
            return  # other files are in it

    def retire(self, *, keep_endpoint: bool) -> None:
        """End the endpoint of this process, but keep its status and commands.

        Args:
            keep_endpoint: Keep `endpoint.json` as well, with the end time.
        """
        file = self.path / "endpoint.json"
        endpoint = read_json(file)
        if endpoint is None or endpoint.get("pid") != os.getpid():
            return
        if keep_endpoint:
            write_json(file, {**endpoint, "ended_at": time.time()}, mode=0o600)
        else:
            file.unlink(missing_ok=True)


def list_endpoints(endpoints_dir: Path) -> list[dict[str, Any]]:
    """Return every `endpoint.json` in the folder, without the tokens, newest first.

    `alive` is None for an endpoint of another machine: only that machine can check its process.
    """
    files = sorted(endpoints_dir.glob("*/endpoint.json"))
    found = [endpoint for file in files if (endpoint := read_json(file)) is not None]
    for endpoint in found:
        endpoint.pop("token", None)
        endpoint["alive"] = _is_alive(endpoint)
    return sorted(found, key=lambda endpoint: float(endpoint.get("started_at", 0)), reverse=True)


# A pid is reused; with its start time and the boot id it names one process.
def _is_alive(endpoint: dict[str, Any]) -> bool | None:
    if endpoint.get("hostname") != process_identity.hostname():
        return None
    if endpoint.get("ended_at") is not None or endpoint.get("boot_id") != process_identity.boot_id():
        return False
    pid = endpoint.get("pid")
    started_at = process_identity.process_started_at(pid) if isinstance(pid, int) else None
    return started_at is not None and started_at == endpoint.get("process_started_at")


_held: dict[Path, int] = {}
"""Locks of this process; kept open until it ends, when the kernel releases them."""


def jobs_dir() -> Path:
    """Return the folder of the endpoints: `TUNEFLEET_JOBS_DIR`, else `jobs` in `TUNEFLEET_HOME` or `~/.tunefleet`."""
    given = variable("TUNEFLEET_JOBS_DIR")
    return Path(given or Path(variable("TUNEFLEET_HOME") or "~/.tunefleet", "jobs")).expanduser()


def sanitized_job_id(job_id: str | None) -> str:
    """Return a job id that is a valid file name; other characters are replaced, with a warning.

    Without an id it is made of host name, time and pid, so that two jobs never get the same one.
    """
    if not job_id:
        now = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        return _cleaned(f"{process_identity.hostname()}_{now}_{os.getpid()}")
    cleaned = _cleaned(job_id)
    if not cleaned:
        raise ValueError(f"{job_id!r} cannot be a job id: it has neither a letter nor a digit.")
    if cleaned != job_id:
        logger.warning("The job id %r is not a valid file name; using %r", job_id, cleaned)
    return cleaned


def claim(endpoints_dir: Path, job_id: str, job_folder: Path | None = None) -> EndpointFolder:
    """Return the folder of a job, for this process alone; `<id>-2` and so on if the id is in use.

    Args:
        endpoints_dir: The folder that holds one folder per job.
        job_id: From `sanitized_job_id`.
        job_folder: Its job folder, if it has one.

    Raises:
        OSError: If the folders cannot be written.
    """
    # The lock decides, not the existence of the folder: a killed process leaves its folder.
    for number in range(1, _MOST + 1):
        name = job_id if number == 1 else f"{job_id[:120]}-{number}"
        folder = EndpointFolder(endpoints_dir, name, job_folder)
        if _take(folder.path):
            if number > 1:
                logger.warning("A job %s is already running; this one is %s", job_id, name)
            return folder
    raise OSError(f"{_MOST} jobs named {job_id} are already running.")


def _release() -> None:
    """Release the folders of this process, as its end does; for tests that simulate several processes."""
    while _held:
        os.close(_held.popitem()[1])


def _cleaned(job_id: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", job_id).lstrip("._-")[:124]


def _take(path: Path) -> bool:
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path in _held:
        return False
    fd = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return False
    except OSError as error:
        # A file system without locks: only endpoint.json shows whether the id is in use.
        logger.debug("%s cannot be locked: %s", path, error)
    if _may_live(path):
        os.close(fd)
        return False
    _held[path] = fd
    return True


def _may_live(path: Path) -> bool:
    """Return whether the process that wrote the endpoint may be running; unknown for another machine's."""
    endpoint = read_json(path / "endpoint.json")
    if endpoint is None or endpoint.get("ended_at") is not None:
        return False
    if endpoint.get("hostname") != process_identity.hostname():
        return True
    started_at = process_identity.process_started_at(int(endpoint.get("pid") or 0))
    same_boot = endpoint.get("boot_id") == process_identity.boot_id()
    return same_boot and started_at is not None and started_at == endpoint.get("process_started_at")
