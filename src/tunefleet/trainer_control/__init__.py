"""Control and reporting for any trainer: journal, status, control server, checkpoint manifests.

Uses the standard library and, for the callbacks, `transformers.TrainerCallback`. It imports no other Tunefleet package,
so that it can be loaded by file location in an environment without Tunefleet. `tunefleet.schemas.journal`,
`schemas.control` and `schemas.job_folder` describe what it writes; a contract test keeps the two in sync.

A program in a job process uses it like this::

    session = trainer_control.open_session(folder)       # one journal and one status file for the process
    trainer = Trainer(..., callbacks=trainer_control.callbacks_for_job(folder))
    trainer.train(resume_from_checkpoint=str(session.resume.path) if session.resume else None)
    session.finish()                            # or session.fail(...)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .checkpoints.manifest import Checkpoint, finish_checkpoint, newest_valid
from .checkpoints.resume import ResumeError
from .journal.status import StatusFile
from .journal.writer import JournalWriter
from .session import JobSession, open_session

if TYPE_CHECKING:
    from transformers import TrainerCallback

__all__ = [
    "Checkpoint",
    "JobSession",
    "JournalWriter",
    "ResumeError",
    "StatusFile",
    "callbacks_for_job",
    "finish_checkpoint",
    "newest_valid",
    "open_session",
]


def callbacks_for_job(folder: str | Path) -> list[TrainerCallback]:
    """Return the callbacks that report and control a training run of this job folder.

    The Trainer's `output_dir` must be the folder's `checkpoints`; the callbacks take over its `save_total_limit`.

    Args:
        folder: The job folder, with its `job.json`.

    Returns:
        Control, checkpoint and journal callbacks, in the required order.
    """
    # Transformers takes half a second to import, and a session without a Trainer does not need it.
    from .callbacks.factory import callbacks_for_session

    return callbacks_for_session(open_session(folder))
