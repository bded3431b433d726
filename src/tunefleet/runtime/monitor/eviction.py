"""Ends one launch so that its GPU is free for somebody else, losing nothing that can be kept."""

from __future__ import annotations

import logging
import time
from typing import Any, Final, Protocol

from tunefleet.errors import ConflictError, NotFoundError, TunefleetError
from tunefleet.schemas.control import CommandState, ControlCommand, ControlReply
from tunefleet.schemas.job_folder import Job, JobStatus

logger = logging.getLogger(__name__)

_AGAIN_S: Final = 2.0
_AFTER_FAILURE_S: Final = 60.0


class Pausable(Protocol):
    """What it needs of a `JobHandle`."""

    @property
    def job(self) -> Job:
        """What it runs."""

    def command(self, name: str, data: dict[str, Any] | None = None, command_id: str | None = None) -> ControlReply:
        """Send a control command to the live job."""

    def command_state(self, command_id: str) -> CommandState:
        """Return what became of a command."""

    def status(self) -> JobStatus | None:
        """Return what the trainer last wrote about itself."""

    def kill(self) -> None:
        """End it at once."""


class MakingWay:
    """Pauses a job; begun anew for each launch that is to go.

    A training that takes steps is paused: whole checkpoint, process gone. One that is still loading has nothing to
    keep and is killed. One that has done its last step is let finish. A save that fails is tried again after a minute;
    the training goes on meanwhile.
    """

    def __init__(self, handle: Pausable) -> None:
        self._handle = handle
        self._tries = 1
        self._asked = False
        self._next_at = 0.0

    def push(self) -> None:
        """Do what is due; call it again and again until the launch has ended."""
        if time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + _AGAIN_S
        try:
            if not self._asked:
                self._handle.command(ControlCommand.PAUSE, {}, self._id)
                self._asked = True
            elif self._handle.command_state(self._id).state == "failed":
                raise NotFoundError("its checkpoint could not be saved")
        except ConflictError as refusal:
            self._unready(refusal)
        except TunefleetError as error:
            logger.warning("job(%s) cannot make way yet: %s", self._handle.job.job_id, error)
            self._tries, self._asked = self._tries + 1, False
            self._next_at = time.monotonic() + (_AFTER_FAILURE_S if isinstance(error, NotFoundError) else _AGAIN_S)

    @property
    def _id(self) -> str:
        return f"yield-{self._handle.job.launch}-{self._tries}"

    def _unready(self, refusal: ConflictError) -> None:
        status = self._handle.status()
        if status is None or status.state == "starting":
            logger.info("job(%s) is still loading and makes way at once", self._handle.job.job_id)
            self._handle.kill()
        else:
            logger.info("job(%s) is let finish: %s", self._handle.job.job_id, refusal)
