"""Attaches a job folder to every training of a script that knows nothing of it.

Wraps `Trainer.train`: each Trainer gets the callbacks of the job before it trains, and a resumed job starts from its
newest whole checkpoint where the script names none. Whatever goes wrong here, the training goes on without it.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import logging
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from . import trainings, world
from .checkpoints import Checkpoint
from .files import read_json
from .journal import JournalWriter
from .quiet import QuietJournal
from .session import JobSession
from .status import StatusFile

logger = logging.getLogger("tunefleet.run")

_OWN = "TrainerControlCallback"
_IN_JOBS = "ControlCallback"


def attach_to(trainer_class: Any, folder: Path) -> None:
    """Make every training of a Trainer class, and of those derived from it, report to a job folder.

    Args:
        trainer_class: `transformers.Trainer`.
        folder: The job folder, with its `job.json`.
    """
    original = trainer_class.train
    hook = Hook(folder)

    @functools.wraps(original)
    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        chosen = hook.prepare(self, resume_from_checkpoint)
        return original(self, chosen, *args, **kwargs)

    trainer_class.train = train


class Hook:
    """What is attached in this process.

    Args:
        folder: The job folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._session: JobSession | None = None
        self._lock: int | None = None
        self._refused = False
        self._trained = 0
        self._failed = False

    def prepare(self, trainer: Any, given: Any) -> Any:
        """Attach to a Trainer that is about to train; return what it is to resume from."""
        try:
            return self._prepare(trainer, given)
        except Exception as error:
            logger.warning("This training cannot be steered: %s", error, exc_info=True)
            return given

    def _prepare(self, trainer: Any, given: Any) -> Any:
        if self._refused or _names(trainer) & {_IN_JOBS}:
            return given
        job = read_json(self._folder / "job.json")
        if job is None or not self._claim():
            return given
        output_dir = Path(trainer.args.output_dir or ".").resolve()
        if world.rank() == 0:
            training = trainings.begin(self._folder, job, output_dir, wanted=given in (None, False))
        else:
            training = trainings.await_begin(self._folder, job["launch"], self._trained)
        if self._session is None:
            self._session = self._open(job, training)
        for callback in [item for item in trainer.callback_handler.callbacks if _OWN in _kinds(item)]:
            logger.warning("The script's own %s rests: this run is steered as %s", _OWN, job["job_id"])
            trainer.remove_callback(callback)
        from .callbacks import callbacks_for_session

        for callback in callbacks_for_session(self._session):
            trainer.add_callback(callback)
        self._trained += 1
        return str(training.checkpoint.path) if training.checkpoint is not None else given

    def _claim(self) -> bool:
        """Be the one process of the script that reports; two that train at once would write into one journal."""
        if self._lock is not None or world.rank() > 0:
            return True
        self._lock = trainings.claim(self._folder)
        if self._lock is None:
            self._refused = True
            logger.warning("Another process of this run is training; this one is not steered")
        return self._lock is not None

    def _open(self, job: dict[str, Any], training: trainings.Training) -> JobSession:
        checkpoint, rank = training.checkpoint, world.rank()
        numbers = itertools.count(training.number)
        if rank > 0:
            quiet = QuietJournal(log_events=False)
            return JobSession(self._folder, job, quiet, StatusFile(None), checkpoint, trainings=numbers, rank=rank)
        status = StatusFile(self._folder)
        status.write(state="starting", phase="loading")
        journal = JournalWriter(
            self._folder, job["launch"], int(job.get("attempt", 1)), *_from(checkpoint), on_tick=status.flush_if_due
        )
        if checkpoint is not None:
            journal.event("training.resumed", f"Resumed from {checkpoint.path.name}.", data={"step": checkpoint.step})
        session = JobSession(self._folder, job, journal, status, checkpoint, trainings=numbers)
        self._watch_the_end(session)
        return session

    def _watch_the_end(self, session: JobSession) -> None:
        before = sys.excepthook

        def failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._failed = True
            _report(session, error, trace)
            before(kind, error, trace)

        sys.excepthook = failed
        atexit.register(self._end, session)

    def _end(self, session: JobSession) -> None:
        try:
            if not self._failed and not session.status.final:
                session.finish()
        except OSError as error:
            logger.warning("How the run ended could not be written down: %s", error)
        session.close()


def _report(session: JobSession, error: BaseException, trace: TracebackType | None) -> None:
    text = "".join(traceback.format_exception(type(error), error, trace))
    memory = isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    try:
        if isinstance(error, KeyboardInterrupt):
            session.status.write(state="stopped", intent="stop", error="Interrupted by Ctrl-C.")
        else:
            session.fail(f"{type(error).__name__}: {first}".rstrip(": "), "oom" if memory else "bug", text)
    except OSError as fault:
        logger.warning("How the run failed could not be written down: %s", fault)


def _from(checkpoint: Checkpoint | None) -> tuple[int, str | None]:
    return (checkpoint.step, checkpoint.digest) if checkpoint is not None else (0, None)


def _kinds(callback: Any) -> set[str]:
    return {kind.__name__ for kind in type(callback).__mro__}


def _names(trainer: Any) -> set[str]:
    return set().union(*(_kinds(item) for item in trainer.callback_handler.callbacks))
