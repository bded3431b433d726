"""Ends a running job early, with a checkpoint before if that is quick."""

from __future__ import annotations

import logging
import time
from typing import Final

from tunefleet.errors import TunefleetError
from tunefleet.schemas.control import ControlCommand
from tunefleet.worker.context import WorkerContext
from tunefleet.worker.interfaces import Handle

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.1
_SETTLED: Final = frozenset({"durable", "failed"})
# Pause before a retry of a cancel that a full disk has prevented.
_CANCEL_PAUSE_S: Final = 2.0
# How long a job may take to exit after SIGKILL was due; a process in uninterruptible sleep may need a while.
_ENDING_S: Final = 120.0


class JobTerminator:
    """Ends the jobs of one attempt."""

    def __init__(self, worker_context: WorkerContext, task_id: str) -> None:
        self._context = worker_context
        self._task_id = task_id
        self._ask_from = 0.0

    def ask(self, handle: Handle, grace_s: float) -> bool:
        """Cancel the job; False if that could not be written to its folder, and must be retried."""
        if time.monotonic() < self._ask_from:
            return False
        try:
            handle.cancel(grace_s)
        except OSError as error:
            logger.warning("Could not cancel task %s, retrying: %s", self._task_id, error)
            self._ask_from = time.monotonic() + _CANCEL_PAUSE_S
            return False
        return True

    def end(self, handle: Handle, *, grace_s: float) -> None:
        """End the job and wait until it is gone; its results are not read."""
        asked = self.ask(handle, grace_s)
        deadline = time.monotonic() + grace_s + _ENDING_S
        while handle.poll() is None:
            if time.monotonic() > deadline:
                logger.error("The job of task %s does not exit.", self._task_id)
                return
            time.sleep(_POLL_S)
            asked = asked or self.ask(handle, grace_s)

    def save(self, handle: Handle, command_id: str) -> None:
        """Save a checkpoint, if that is quick."""
        deadline = time.monotonic() + self._context.suspend_save_s
        try:
            handle.command(ControlCommand.SAVE_CHECKPOINT, {}, command_id)
            while time.monotonic() < deadline and handle.command_state(command_id).state not in _SETTLED:
                time.sleep(_POLL_S)
        except TunefleetError as error:
            logger.info("No checkpoint saved; an earlier one is used: %s", error)
