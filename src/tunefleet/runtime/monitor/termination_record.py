"""What a supervisor adds to the journal of a launch that it has ended itself."""

from __future__ import annotations

import logging

from tunefleet.runtime.exit_classification import read_status
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control.journal.writer import JournalWriter

logger = logging.getLogger(__name__)


def add(folder: JobFolder, launch: str, name: str, message: str, *, phase: str | None = None) -> None:
    """Append an event, and where the job stands, to the journal of a launch whose processes are gone.

    A journal has one writer: the trainer, and when it is gone, whoever saw its end. A full disk is no error here.

    Args:
        folder: The job folder.
        launch: Which launch.
        name: Dotted name of the event.
        message: One sentence.
        phase: What the job does from now on; None leaves that as it is.
    """
    if not (folder.journal_dir / f"{launch}.jsonl").exists():
        return  # it never came to reporting: no first record, no series
    status = read_status(folder)
    try:
        writer = JournalWriter(folder.root, launch)
        writer.event(name, message, "warning")
        if phase is not None:
            step, max_steps = (status.step, status.max_steps) if status is not None else (0, 0)
            writer.progress(phase, step=step, max_steps=max_steps)
        writer.close()
    except OSError as error:
        logger.warning("What became of %s cannot be added to its journal: %s", launch, error)
