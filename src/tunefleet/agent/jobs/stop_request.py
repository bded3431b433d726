"""What is asked of a running job of the agent: that it ends, or that it pauses. The wish is in its record."""

from __future__ import annotations

import logging
import time
from typing import Final

from tunefleet.agent.jobs.job import AgentJob
from tunefleet.errors import ConflictError, InputError, NotFoundError, TunefleetError
from tunefleet.runtime import JobHandle
from tunefleet.schemas.control import ControlCommand

logger = logging.getLogger(__name__)

# How long a job may take to end by itself.
GRACE_S: Final = 30.0
_LOOK_S: Final = 0.5


class Steering:
    """Carries the wishes for one job to its process, each once."""

    def __init__(self, job: AgentJob) -> None:
        self._job = job
        self._asked: str | None = None
        self._looked = 0.0

    def obey(self, handle: JobHandle) -> None:
        """Do what is wished; called several times a second."""
        record = self._job.record
        if record.wish == "cancel" and self._asked != "cancel":
            handle.cancel(GRACE_S)
            self._asked = "cancel"
            logger.info("job(%s) is cancelled.", record.job_id)
        elif record.wish == "pause":
            self._pause(handle)

    def _pause(self, handle: JobHandle) -> None:
        """Ask until the trainer takes it; while it still loads it takes nothing."""
        command_id = self._job.record.pause_id
        if self._asked != command_id:
            try:
                handle.command(ControlCommand.PAUSE, {}, command_id)
            except (ConflictError, NotFoundError) as error:
                logger.debug("job(%s) cannot be paused yet: %s", self._job.job_id, error)
            except InputError as error:
                self._job.note(wish=None)
                self._job.add_warning(f"It could not be paused: {error}")
            except TunefleetError as error:
                logger.debug("job(%s) does not answer: %s", self._job.job_id, error)
            else:
                self._asked = command_id
                logger.info("job(%s) is asked to pause.", self._job.job_id)
        elif time.monotonic() - self._looked > _LOOK_S:
            self._looked = time.monotonic()
            self._check_pause(handle, command_id)

    def _check_pause(self, handle: JobHandle, command_id: str) -> None:
        try:
            state = handle.command_state(command_id)
        except TunefleetError as error:
            logger.debug("job(%s) does not say what became of the pause: %s", self._job.job_id, error)
            return
        if state.state == "failed" and handle.poll() is None:
            self._job.note(wish=None)
            self._job.add_warning(f"It could not be paused and goes on: {state.message or 'no checkpoint was saved'}")
