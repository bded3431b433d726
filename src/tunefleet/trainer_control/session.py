"""The one journal and one status file of a job process, and the checkpoint that it resumes from.

Everything in a process that reports uses the same session, because sequence numbers have a single writer.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .checkpoints.manifest import Checkpoint, launch_of
from .checkpoints.resume import Decision, ResumeError, await_decision, decide, first_step
from .diagnostics import record_failure
from .distributed import world
from .files import read_json
from .journal.null import Journal, NullJournal
from .journal.status import StatusFile
from .journal.writer import JournalWriter

logger = logging.getLogger(__name__)

_sessions: dict[tuple[int, Path], JobSession] = {}
_lock = threading.Lock()


@dataclass(frozen=True, eq=False)
class JobSession:
    """What a job process reports with.

    Args:
        journal: The journal of this launch.
        resume: The checkpoint that the launch resumes from; None starts from scratch.
        trainings: Numbers of the process's training runs; each run has a series of its own.
        rank: Rank of the process. Only rank 0 reports; the sessions of the others accept everything and write nothing.
        before_manifest: Called before a checkpoint is hashed: wait here for anything that still writes to it.
        before_end: Called before a failure ends the process: wait here for checkpoints that are being finished.
    """

    folder: Path
    job: dict[str, Any]
    journal: Journal
    status: StatusFile
    resume: Checkpoint | None
    trainings: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    rank: int = 0
    before_manifest: list[Callable[[], None]] = field(default_factory=list)
    before_end: list[Callable[[], object]] = field(default_factory=list)

    @property
    def leads(self) -> bool:
        """Whether this process reports, takes commands and delivers; exactly one process of a run does."""
        return self.rank == 0

    @property
    def checkpoints_dir(self) -> Path:
        """The `output_dir` of the Trainer."""
        return self.folder / "checkpoints"

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let a subprocess report in place of this process while the body runs; for rank 0 only.

        Afterwards the status is what the subprocess left; `StatusFile.take_back` returns how it ended.
        """
        journal = self.journal
        if not isinstance(journal, JournalWriter):
            yield
            return
        self.status.flush()
        with journal.lent():
            yield

    def finish(self) -> None:
        """Record the end (completed, or stopped on request), after the journal is durable."""
        # Before the final status, which announces that the records are complete.
        self.journal.sync()
        if isinstance(self.journal, JournalWriter):
            self.status.update(records=self.journal.seq, launch=self.journal.launch)
        self.status.finish()

    def settle(self) -> None:
        """Wait until saved checkpoints are finished: the next launch resumes from the newest of them."""
        # A checkpoint that is being hashed is the one that the next launch should resume from.
        for wait in self.before_end:
            wait()

    def fail(self, error: str, kind: str, traceback: str | None = None) -> None:
        """Record a failure: message for the user, kind (`JobStatus.error_kind`), traceback."""
        self.settle()
        try:
            self.journal.sync()
        except OSError as fault:
            logger.warning("The journal could not be synced: %s", fault)
        if world.size() > 1:
            record_failure(self.folder, self.rank, error, kind, traceback)
        self.status.fail(error, kind, traceback)

    def close(self) -> None:
        """Write what is left and end the writer's thread. Called automatically at the end of the process."""
        try:
            self.journal.close()
            self.status.flush()
        except OSError as fault:
            logger.warning("The last reports of the job were not written: %s", fault)


def open_session(folder: str | Path) -> JobSession:
    """Return this process's session for a job folder; the first call opens it.

    Opening finds the newest valid checkpoint (broken ones are moved aside, later ones superseded), starts the journal
    of the launch with it, and writes the first status. Only rank 0 does all that.

    Args:
        folder: The job folder, with its `job.json`; this process holds the folder's lock.

    Raises:
        FileNotFoundError: If there is no readable `job.json`.
        ResumeError: If the step to resume from has no valid checkpoint; the status records it.
    """
    path = Path(folder).resolve()
    with _lock:
        # Keyed by pid as well: a forked child must not write with the session of its parent.
        session = _sessions.get((os.getpid(), path))
        if session is None:
            session = _sessions[os.getpid(), path] = _open(path)
            # A program that ends by an exception must still flush its journal.
            atexit.register(session.close)
    return session


def _open(folder: Path) -> JobSession:
    job = read_json(folder / "job.json")
    if job is None:
        raise FileNotFoundError(f"{folder} has no readable job.json.")
    rank = world.rank()
    if rank > 0:
        # On other nodes than rank 0's, the first process of the node decides for its folder; the result is the same.
        decision = decide(folder, job) if world.leads_folder() else await_decision(folder, job)
        status = StatusFile(None)
        return JobSession(folder, job, NullJournal(log_events=False), status, decision.checkpoint, rank=rank)
    return _lead(folder, job)


def _lead(folder: Path, job: dict[str, Any]) -> JobSession:
    # Written first, so that the supervisor sees a live process while checkpoints are verified.
    status = StatusFile(folder)
    status.write(state="starting", phase="loading")
    try:
        decision = decide(folder, job)
    except ResumeError as error:
        status.fail(str(error), "input")
        raise
    resume = decision.checkpoint
    begins = first_step(folder, resume)
    journal = JournalWriter(
        folder,
        job["launch"],
        int(job.get("attempt", 0)),
        begins,
        resume.digest if resume else None,
        parent=launch_of(resume) if resume and begins == resume.step else None,
        on_tick=status.flush_if_due,
    )
    _report(journal, decision)
    if resume:
        status.update(step=resume.step)
    return JobSession(folder, job, journal, status, resume)


def _report(journal: JournalWriter, decision: Decision) -> None:
    for name, message, level in decision.notes:
        journal.event(name, message, level)
    resume = decision.checkpoint
    if resume:
        journal.event("training.resumed", f"Resumed from {resume.path.name}.", data={"step": resume.step})
