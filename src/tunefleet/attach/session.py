"""The one journal and one status file of a job process, and the checkpoint that it resumes from.

Everything in a process that reports goes through the same session, because sequence numbers have one writer.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .checkpoints import Checkpoint, find_newest, supersede_beyond
from .files import read_json
from .journal import JournalWriter
from .status import StatusFile

logger = logging.getLogger(__name__)

_sessions: dict[tuple[int, Path], JobSession] = {}
_lock = threading.Lock()


@dataclass(frozen=True, eq=False)
class JobSession:
    """What a job process reports with.

    Args:
        folder: The job folder.
        job: Its `job.json`.
        journal: The journal of this launch.
        status: The status file.
        resume: The checkpoint that the launch resumes from; None starts from nothing.
        trainings: Numbers the trainings of the process; each has a series of its own.
    """

    folder: Path
    job: dict[str, Any]
    journal: JournalWriter
    status: StatusFile
    resume: Checkpoint | None
    trainings: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def checkpoints_dir(self) -> Path:
        """The `output_dir` of the Trainer."""
        return self.folder / "checkpoints"

    def finish(self) -> None:
        """Record the proper end (completed, or stopped if somebody asked for it); the journal is durable before."""
        self.journal.sync()
        self.status.finish()

    def fail(self, error: str, kind: str, traceback: str | None = None) -> None:
        """Record a failure: what the user reads, its kind (`wire.jobfolder.JobStatus.error_kind`), the traceback."""
        try:
            self.journal.sync()
        except OSError as fault:
            logger.warning("The journal could not be synced: %s", fault)
        self.status.fail(error, kind, traceback)

    def close(self) -> None:
        """Write what is left and end the writer's thread. Runs by itself at the end of the process."""
        try:
            self.journal.close()
            self.status.flush()
        except OSError as fault:
            logger.warning("The last reports of the job were not written: %s", fault)


def open_session(folder: str | Path) -> JobSession:
    """Return this process's session for a job folder; the first call opens it.

    Opening finds the newest valid checkpoint (broken ones are set aside, ones beyond it superseded), starts the
    journal of the launch with it, and writes the first status.

    Args:
        folder: The job folder, with its `job.json`; this process holds the folder's lock.

    Raises:
        FileNotFoundError: If there is no readable `job.json`.
    """
    path = Path(folder).resolve()
    with _lock:
        session = _sessions.get((os.getpid(), path))
        if session is None:
            session = _sessions[os.getpid(), path] = _open(path)
            atexit.register(session.close)
    return session


def _open(folder: Path) -> JobSession:
    job = read_json(folder / "job.json")
    if job is None:
        raise FileNotFoundError(f"{folder} has no readable job.json.")
    status = StatusFile(folder)
    status.write(state="starting", phase="loading")
    resume = find_newest(folder / "checkpoints")
    moved = supersede_beyond(folder / "checkpoints", resume.step) if resume else []
    journal = JournalWriter(
        folder,
        job["launch"],
        int(job.get("attempt", 0)),
        resume.step if resume else 0,
        resume.digest if resume else None,
        on_tick=status.flush_if_due,
    )
    for path in moved:
        journal.event("checkpoint.superseded", f"{path.name} lies beyond the checkpoint that is resumed.")
    if resume:
        journal.event("training.resumed", f"Resumed from {resume.path.name}.", data={"step": resume.step})
        status.update(step=resume.step)
    return JobSession(folder, job, journal, status, resume)
