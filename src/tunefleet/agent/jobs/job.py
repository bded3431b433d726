"""One job of the agent: its record (`agent.json`), its state changes, and reads of its files."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError

from tunefleet.agent.jobs.journal import JournalReader, JournalState
from tunefleet.agent.jobs.logtext import LogPages, LogTimes, stamped
from tunefleet.errors import InputError
from tunefleet.runtime import JobHandle
from tunefleet.runtime.exit_classification import read_status
from tunefleet.runtime.monitor.elapsed_time import Watched
from tunefleet.schemas.base import Message
from tunefleet.schemas.job_folder import JobFolder, JobStatus
from tunefleet.schemas.training_protocol.training import JobState
from tunefleet.schemas.worker_link import Offer, ResumeFrom
from tunefleet.trainer_control.files import make_private, read_json, write_json
from tunefleet.validation_errors import summary

_NAME = "agent.json"
logger = logging.getLogger(__name__)
_ACTIVE: Final = frozenset({JobState.PENDING, JobState.RUNNING, JobState.PAUSED})


class AgentRecord(Message):
    """One job of this agent.

    Args:
        order: Position in the queue: seconds since the epoch.
        from_step: The checkpoint to resume from; the newest complete one if None.
        refused: Reports that the backend rejects permanently: kind → count.
    """

    job_id: str
    name: str
    user_id: str = ""
    kind: str
    spec: dict[str, Any]
    inputs: dict[str, str] = Field(default_factory=dict)
    addresses: dict[str, str] = Field(default_factory=dict)
    digests: dict[str, dict[str, str]] = Field(default_factory=dict)
    attempt: int = 1
    state: JobState = JobState.PENDING
    wish: Literal["pause", "cancel"] | None = None
    wishes: int = 0
    order: float
    started_at: float | None = None
    completed_at: float | None = None
    checkpoint: str | None = None
    from_step: int | None = None
    resume: ResumeFrom | None = None
    launch: str | None = None
    error: str | None = None
    detail: str | None = None
    warnings: tuple[str, ...] = ()
    backend: str | None = None
    token: str | None = Field(default=None, repr=False)
    told: JobState | None = None
    muted: str | None = None
    refused: dict[str, int] = Field(default_factory=dict)
    polled: bool = False
    delivers: bool = False
    traceparent: str | None = None
    asked_by: str | None = None
    watched: Watched = Watched()

    @property
    def loss_is_of_tokens(self) -> bool:
        """Whether its loss is a mean over tokens rather than a preference loss."""
        return self.kind in {"sft", "lora_sft"}

    @property
    def pause_id(self) -> str:
        """Id of the control command for the pause."""
        return f"pause-{self.launch}-{self.wishes}"


def _keep_record(folder: JobFolder, record: AgentRecord) -> None:
    """Write a record to disk, with fsync."""
    make_private(folder.root)
    write_json(folder.root / _NAME, record.model_dump(mode="json"), mode=0o600, sync=True)


def find_records(jobs_dir: Path) -> Iterator[AgentRecord]:
    """Yield the records of all job folders; an unreadable one is logged and skipped."""
    for path in sorted(jobs_dir.glob(f"*/{_NAME}")):
        try:
            yield AgentRecord.model_validate(read_json(path) or {})
        except ValidationError as error:
            logger.warning("Skipping the job in %s, its %s cannot be read: %s", path.parent, _NAME, summary(error))


class AgentJob:
    """A job, running or not."""

    def __init__(self, folder: JobFolder, record: AgentRecord, on_change: Callable[[AgentJob], None]) -> None:
        self.folder = folder
        self.handle: JobHandle | None = None
        self.changed = threading.Event()
        """Set when the record has changed; the thread that runs the job waits on it."""
        self.phase: str | None = None
        """What the agent is doing for the job, such as `downloading`."""
        self._record = record
        self._on_change = on_change
        self._lock = threading.RLock()
        self._reader = JournalReader(folder, of_tokens=record.loss_is_of_tokens)
        self._pages = LogPages(folder.log)
        self.log_times = LogTimes(folder.log)

    @property
    def record(self) -> AgentRecord:
        """Its stored record."""
        return self._record

    @property
    def job_id(self) -> str:
        """Its id."""
        return self._record.job_id

    @property
    def fully_reported(self) -> bool:
        """Whether its end was reported, or reports have been stopped."""
        record = self._record
        return record.muted is not None or (record.state.final and record.told is record.state)

    def note(self, **changes: object) -> AgentRecord:
        """Change the record on disk and in memory, and notify waiting threads.

        Raises:
            OSError: If it cannot be written; the record is unchanged then.
        """
        with self._lock:
            record = self._record.model_copy(update=changes)
            _keep_record(self.folder, record)
            self._record = record
        self.changed.set()
        self._on_change(self)
        return record

    def ask_pause(self) -> None:
        """Request a pause: a checkpoint, then the end of the process."""
        with self._lock:
            if self._record.state is not JobState.RUNNING:
                raise InputError(f"Job {self.job_id} is not running: it is {self._record.state}.")
            if self._record.wish is None:
                self.note(wish="pause", wishes=self._record.wishes + 1)

    def ask_cancel(self) -> None:
        """Request a cancel; saved checkpoints stay."""
        with self._lock:
            if self._record.state not in _ACTIVE:
                raise InputError(f"Job {self.job_id} is not running: it is {self._record.state}.")
            if self._record.state is JobState.RUNNING:
                self.note(wish="cancel")
            else:
                self.note(state=JobState.CANCELLED, completed_at=time.time(), wish=None)

    def ask_resume(self, checkpoint: str | None = None) -> None:
        """Put a paused job back into the queue, at its old position."""
        with self._lock:
            if self._record.state is not JobState.PAUSED:
                raise InputError(f"Job {self.job_id} is not paused: it is {self._record.state}.")
            if not self.checkpoints():
                raise InputError(f"Job {self.job_id} has no complete checkpoint to resume from.")
            step = self._step_of(checkpoint)
            # The paused launch has ended; a new one starts next.
            self.handle = None
            self.note(state=JobState.PENDING, wish=None, from_step=step, error=None, launch=None)

    def add_warning(self, message: str) -> None:
        """Add a warning for the user, once."""
        with self._lock:
            if message not in self._record.warnings:
                logger.warning("job(%s) %s", self.job_id, message)
                self.note(warnings=(*self._record.warnings, message))

    def offer(self) -> Offer:
        """Return the job as an offer, the input of executors."""
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

    def log_warnings(self) -> None:
        """Write the warnings into its log."""
        lines = "".join(f"warning: {message}\n" for message in self._record.warnings)
        if lines:
            # One write in append mode, so that it does not split a line of the trainer.
            with self.folder.log.open("ab") as log:
                log.write(lines.encode())

    def link_final(self) -> None:
        """Link `final` to the trained model, as the protocol's folder layout requires."""
        final = self.folder.root / "final"
        for name in ("final_lora", "final_model"):
            if (self.folder.root / name).is_dir() and not final.exists():
                final.symlink_to(name)

    def checkpoints(self) -> dict[int, Path]:
        """Return the complete checkpoints on disk by step, in order."""
        found = self.folder.checkpoints_dir.glob("checkpoint-*/manifest.json")
        steps = {int(file.parent.name.rpartition("-")[2]): file.parent for file in found}
        return dict(sorted(steps.items()))

    def journal(self) -> JournalState:
        """Return the current state of its journal."""
        return self._reader.look()

    def status(self) -> JobStatus | None:
        """Return the last status that its trainer wrote."""
        return read_status(self.folder)

    def log(self, offset: int, limit: int) -> tuple[list[str], int, int]:
        """Return lines of its log, the number of the first one, and the total; see `LogPages.page`."""
        lines, first, total = self._pages.page(offset, limit)
        return stamped(lines, self._record.started_at or self._record.order, self.log_times), first, total

    def _step_of(self, checkpoint: str | None) -> int | None:
        if checkpoint is None:
            return None
        saved = self.checkpoints()
        named = Path(checkpoint)
        wanted = named.name if named.parent == Path() else named.absolute()
        for step, path in saved.items():
            if wanted in (path.name, str(step), path.absolute()):
                return step
        known = ", ".join(path.name for path in saved.values())
        raise InputError(
            f"{checkpoint} is not a complete checkpoint of job {self.job_id}.", hint=f"Checkpoints: {known}."
        )

    def describe_end(self) -> dict[str, Any]:
        """Return the details of a status report: the error, or the checkpoint of a pause."""
        record = self._record
        details: dict[str, Any] = {"error": record.error} if record.error else {}
        if record.state is JobState.COMPLETED and (rate := self.journal().samples_per_second) is not None:
            details["samples_per_second"] = rate
        if record.state is JobState.PAUSED and (saved := self.checkpoints()):
            step = max(saved)
            details |= {"step": step, "checkpoint": saved[step].name}
        return details
