"""What a rank other than the first leaves behind: no status of its own, but why it failed."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from .files import write_json

logger = logging.getLogger(__name__)

RANKS = "ranks"


def record_failure(folder: Path, rank: int, error: str, kind: str, traceback: str | None) -> None:
    """Write down why a rank failed: of several failures the earliest is the cause, the others follow from it.

    Args:
        folder: The job folder.
        rank: Which process.
        error: One sentence for the user.
        kind: `wire.jobfolder.JobStatus.error_kind`.
        traceback: The last traceback.
    """
    fields = {"rank": rank, "at": time.time(), "error": error, "kind": kind, "traceback": traceback}
    try:
        (folder / RANKS).mkdir(exist_ok=True)
        write_json(folder / RANKS / f"{rank}.json", fields)
    except OSError as fault:
        logger.warning("Why rank %d failed could not be written down: %s", rank, fault)
