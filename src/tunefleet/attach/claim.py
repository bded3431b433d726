"""Which endpoint folder a job gets that names itself: two that want the same one both live, under different names."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import time
from pathlib import Path

from . import identity
from .endpoint import EndpointFolder
from .environ import variable
from .files import read_json

logger = logging.getLogger("tunefleet.control")

_MOST = 99
_held: dict[Path, int] = {}
"""Locks of this process; kept open until it ends."""


def jobs_dir() -> Path:
    """Return where live jobs can be found: `TUNEFLEET_JOBS_DIR`, else `jobs` in `TUNEFLEET_HOME` or `~/.tunefleet`."""
    given = variable("TUNEFLEET_JOBS_DIR")
    return Path(given or Path(variable("TUNEFLEET_HOME") or "~/.tunefleet", "jobs")).expanduser()


def plain_id(job_id: str | None) -> str:
    """Return a job id that can be a file name: what cannot be in one is replaced, and said.

    Without one it is made of the machine's name, the time and the process, so that two jobs never get the same.
    """
    if not job_id:
        now = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        return _cleaned(f"{identity.hostname()}_{now}_{os.getpid()}")
    cleaned = _cleaned(job_id)
    if not cleaned:
        raise ValueError(f"{job_id!r} cannot be a job id: it has no letter and no digit.")
    if cleaned != job_id:
        logger.warning("The job id %r cannot be a file name; it is %r", job_id, cleaned)
    return cleaned


def claim(endpoints_dir: Path, job_id: str, job_folder: Path | None = None) -> EndpointFolder:
    """Return the folder of a job, for this process alone; `<id>-2` and so on if others live under that id.

    Args:
        endpoints_dir: The folder that holds one folder a job.
        job_id: What `plain_id` returned.
        job_folder: Where its job folder lies, if it has one.

    Raises:
        OSError: If the folders cannot be written.
    """
    for number in range(1, _MOST + 1):
        name = job_id if number == 1 else f"{job_id[:120]}-{number}"
        folder = EndpointFolder(endpoints_dir, name, job_folder)
        if _take(folder.path):
            if number > 1:
                logger.warning("A job %s lives already; this one is %s", job_id, name)
            return folder
    raise OSError(f"{_MOST} jobs {job_id} live already.")


def _release() -> None:
    """Give every folder of this process back, as its end does; for tests that play several processes."""
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
        # A file system without locks: what endpoint.json says must do.
        logger.debug("%s cannot be locked: %s", path, error)
    if _may_live(path):
        os.close(fd)
        return False
    _held[path] = fd
    return True


def _may_live(path: Path) -> bool:
    """Tell whether the process that wrote the endpoint may live; of another machine's, nobody here can know."""
    endpoint = read_json(path / "endpoint.json")
    if endpoint is None or endpoint.get("ended_at") is not None:
        return False
    if endpoint.get("hostname") != identity.hostname():
        return True
    started_at = identity.process_started_at(int(endpoint.get("pid") or 0))
    same_boot = endpoint.get("boot_id") == identity.boot_id()
    return same_boot and started_at is not None and started_at == endpoint.get("process_started_at")
