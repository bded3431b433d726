"""One job of the agent: its record, what may be asked of it in which state, and the views of it.

The walk from the queue to the end is `running.py`'s; a job that does not run is this object and its files alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tunefleet.agent.jobs.journal import JournalReader, JournalState
from tunefleet.agent.jobs.logtext import LogPages, LogTimes, stamped
from tunefleet.agent.jobs.records import AgentRecord, keep
from tunefleet.errors import InputError
from tunefleet.runtime import JobHandle
from tunefleet.runtime.exit_classification import read_status
from tunefleet.schemas.job_folder import JobFolder, JobStatus
from tunefleet.schemas.training_protocol.training import JobState
from tunefleet.schemas.worker_link import Offer

logger = logging.getLogger(__name__)

_ACTIVE: Final = frozenset({JobState.PENDING, JobState.RUNNING, JobState.PAUSED})


class AgentJob:
    """A job, alive or not."""

    def __init__(self, folder: JobFolder, record: AgentRecord, on_change: Callable[[AgentJob], None]) -> None:
        self.folder = folder
        self.handle: JobHandle | None = None
        self.changed = threading.Event()
        """Set when there is something new for the thread that runs it."""
        self.phase: str | None = None
        """What the agent itself does for it just now, such as `downloading`."""
        self._record = record
        self._on_change = on_change
        self._lock = threading.RLock()
        self._reader = JournalReader(folder, of_tokens=record.loss_is_of_tokens)
        self._pages = LogPages(folder.log)
        self.log_times = LogTimes(folder.log)

    @property
    def record(self) -> AgentRecord:
        """What is remembered of it."""
        return self._record

    @property
    def job_id(self) -> str:
        """Its id."""
        return self._record.job_id

    @property
    def told_all(self) -> bool:
        """Whether the backend knows its end, or is not told any more."""
        record = self._record
        return record.muted is not None or (record.state.final and record.told is record.state)

    def note(self, **changes: object) -> AgentRecord:
        """Change the record, durably, and say so.

        Raises:
            OSError: If it cannot be written; then nothing has changed.
        """
        with self._lock:
            record = self._record.model_copy(update=changes)
            keep(self.folder, record)
            self._record = record
        self.changed.set()
        self._on_change(self)
        return record

    def ask_pause(self) -> None:
        """Ask for a checkpoint and the end of the process."""
        with self._lock:
            if self._record.state is not JobState.RUNNING:
                raise InputError(f"Job {self.job_id} is not running: it is {self._record.state}.")
            if self._record.wish is None:
                self.note(wish="pause", wishes=self._record.wishes + 1)

    def ask_cancel(self) -> None:
        """Ask for its end; what it has saved stays."""
        with self._lock:
            if self._record.state not in _ACTIVE:
                raise InputError(f"Job {self.job_id} is not running: it is {self._record.state}.")
            if self._record.state is JobState.RUNNING:
                self.note(wish="cancel")
            else:
                self.note(state=JobState.CANCELLED, completed_at=time.time(), wish=None)

    def ask_resume(self, checkpoint: str | None = None) -> None:
        """Put it back into the queue, at its old place."""
        with self._lock:
            if self._record.state is not JobState.PAUSED:
                raise InputError(f"Job {self.job_id} is not paused: it is {self._record.state}.")
            if not self.checkpoints():
                raise InputError(f"Job {self.job_id} has no whole checkpoint to resume from.")
            step = self._step_of(checkpoint)
            # The launch that was paused is over; what starts next is another one.
            self.handle = None
            self.note(state=JobState.PENDING, wish=None, from_step=step, error=None, launch=None)

    def add_warning(self, sentence: str) -> None:
        """Remember something that the user should know, once."""
        with self._lock:
            if sentence not in self._record.warnings:
                logger.warning("job(%s) %s", self.job_id, sentence)
                self.note(warnings=(*self._record.warnings, sentence))

    def offer(self) -> Offer:
        """Put it into the words in which an executor takes it."""
        record = self._record
        return Offer(
            token=f"agent-{record.job_id}",
            task_id=record.job_id,
            workflow_id=record.job_id,
            attempt=record.attempt,
            kind=record.kind,
            name=record.name,
            spec=record.spec,
            traceparent=record.traceparent,
        )

    def say_warnings(self) -> None:
        """Write the warnings into its log."""
        lines = "".join(f"warning: {sentence}\n" for sentence in self._record.warnings)
        if lines:
            # One write in append mode: it does not fall into a line of the trainer's.
            with self.folder.log.open("ab") as log:
                log.write(lines.encode())

    def link_final(self) -> None:
        """Let `final` name what was trained, as the document's folder does."""
        final = self.folder.root / "final"
        for name in ("final_lora", "final_model"):
            if (self.folder.root / name).is_dir() and not final.exists():
                final.symlink_to(name)

    def checkpoints(self) -> dict[int, Path]:
        """Return the whole checkpoints on disk by step, in order."""
        found = self.folder.checkpoints_dir.glob("checkpoint-*/manifest.json")
        steps = {int(file.parent.name.rpartition("-")[2]): file.parent for file in found}
        return dict(sorted(steps.items()))

    def journal(self) -> JournalState:
        """Return what its journal says now."""
        return self._reader.look()

    def status(self) -> JobStatus | None:
        """Return what its trainer last wrote about itself."""
        return read_status(self.folder)

    def log(self, offset: int, limit: int) -> tuple[list[str], int, int]:
        """Return lines of its log, the number of the first one, and how many there are; see `LogPages.page`."""
        lines, first, total = self._pages.page(offset, limit)
        return stamped(lines, self._record.started_at or self._record.order, self.log_times), first, total

    def _step_of(self, checkpoint: str | None) -> int | None:
        if checkpoint is None:
            return None
        here = self.checkpoints()
        named = Path(checkpoint)
        wanted = named.name if named.parent == Path() else named.absolute()
        for step, path in here.items():
            if wanted in (path.name, str(step), path.absolute()):
                return step
        known = ", ".join(path.name for path in here.values())
        raise InputError(f"{checkpoint} is no whole checkpoint of job {self.job_id}.", hint=f"It has: {known}.")

    def describe_end(self) -> dict[str, Any]:
        """Return what the backend is told with a status: the error, or where a pause stands."""
        record = self._record
        told: dict[str, Any] = {"error": record.error} if record.error else {}
        if record.state is JobState.COMPLETED and (rate := self.journal().samples_per_second) is not None:
            told["samples_per_second"] = rate
        if record.state is JobState.PAUSED and (saved := self.checkpoints()):
            step = max(saved)
            told |= {"step": step, "checkpoint": saved[step].name}
        return told
