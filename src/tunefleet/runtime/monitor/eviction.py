"""Preempts one launch, so that its GPU is free for another process, without losing progress."""

from __future__ import annotations

import logging
import time
from typing import Any, Final, Protocol

from tunefleet.errors import ConflictError, NotFoundError, TunefleetError
from tunefleet.schemas.control import CommandState, ControlCommand, ControlReply
from tunefleet.schemas.job_folder import Job, JobStatus

logger = logging.getLogger(__name__)

_RETRY_S: Final = 2.0
# Pause after a failed save, which may take minutes on a slow disk; the training continues meanwhile.
_AFTER_FAILURE_S: Final = 60.0


class Pausable(Protocol):
    """The part of a `JobHandle` that a preemption uses."""

    @property
    def job(self) -> Job:
        """The job that it runs."""

    def command(self, name: str, data: dict[str, Any] | None = None, command_id: str | None = None) -> ControlReply:
        """Send a control command to the running job."""

    def command_state(self, command_id: str) -> CommandState:
        """Return the state of a command."""

    def status(self) -> JobStatus | None:
        """Return the last status that the trainer wrote."""

    def kill(self) -> None:
        """End it immediately."""


class LaunchPreemption:
    """Preemption of one launch.

    A training job is paused: it saves a complete checkpoint and exits. A job that is still loading has nothing to save
    and is killed. A job after its last step may finish. A failed save is retried after a minute.
    """

    def __init__(self, handle: Pausable) -> None:
        self._handle = handle
        self._tries = 1
        self._sent = False
        self._next_at = 0.0

    def advance(self) -> None:
        """Advance the preemption; call it repeatedly until the launch has ended."""
        if time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + _RETRY_S
        try:
            if not self._sent:
                self._handle.command(ControlCommand.PAUSE, {}, self._id)
                self._sent = True
            elif self._handle.command_state(self._id).state == "failed":
                raise NotFoundError("its checkpoint could not be saved")
        except ConflictError as refusal:
            self._on_rejection(refusal)
        except TunefleetError as error:
            logger.warning("job(%s) cannot be preempted yet: %s", self._handle.job.job_id, error)
            self._tries, self._sent = self._tries + 1, False
            self._next_at = time.monotonic() + (_AFTER_FAILURE_S if isinstance(error, NotFoundError) else _RETRY_S)

    @property
    def _id(self) -> str:
        return f"yield-{self._handle.job.launch}-{self._tries}"

    def _on_rejection(self, refusal: ConflictError) -> None:
        status = self._handle.status()
        if status is None or status.state == "starting":
            logger.info("job(%s) is still loading: killing it", self._handle.job.job_id)
            self._handle.kill()
        else:
            logger.info("job(%s) may finish: %s", self._handle.job.job_id, refusal)
