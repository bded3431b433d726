"""One job, however it can be reached: by its port here, by files, by a port elsewhere, or only by what it left."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from tunefleet.errors import ConflictError, NotFoundError, TunefleetError, UnreachableError
from tunefleet.runtime.control.discovery import FoundJob, find_job, is_surely_alive
from tunefleet.runtime.control.file_client import FileControlClient, status_view
from tunefleet.runtime.control.http_client import ControlClient, RemoteHost
from tunefleet.schemas.control import CommandState, ControlCommand, ControlReply
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control.files import read_json
from tunefleet.trainer_control.journal.status import FINAL_STATES

logger = logging.getLogger(__name__)


class _Client(Protocol):
    def send(self, command: str, data: dict[str, Any] | None = None, command_id: str | None = None) -> ControlReply: ...

    def state(self, command_id: str) -> CommandState: ...

    def status(self) -> dict[str, Any]: ...


class JobSteering:
    """Status, commands and outcomes of one job, alive or not.

    Args:
        client: Its line; None if there is no process that could answer.
        found: What is known of it on this machine; None for a job elsewhere.
    """

    def __init__(self, job_id: str, client: _Client | None, found: FoundJob | None) -> None:
        self.job_id = job_id
        self.found = found
        self._client = client

    @classmethod
    def here(cls, endpoints_dir: Path, wanted: str) -> JobSteering:
        """Find a job of this machine by what the user typed.

        Raises:
            InputError: If the start of an id fits several.
        """
        return cls.of(find_job(endpoints_dir, wanted))

    @classmethod
    def of(cls, job: FoundJob) -> JobSteering:
        """Take a job that was found, alive or not."""
        if job.endpoint is None or not job.live:
            return cls(job.job_id, None, job)
        return cls(job.job_id, ControlClient(job.endpoint) if job.endpoint.port else FileControlClient(job), job)

    @classmethod
    def elsewhere(cls, host: RemoteHost, wanted: str) -> JobSteering:
        """Find a job by a control port of another machine; the port may be another job's, which knows the way.

        Raises:
            NotFoundError: If nobody there knows it.
            UnreachableError: If nothing answers.
        """
        client = ControlClient(host, wanted)
        try:
            client.status()
        except NotFoundError:
            known = [item for item in host.jobs() if str(item.get("job_id", "")).startswith(wanted) and wanted]
            exact = [item for item in known if item.get("job_id") == wanted] or known
            if len(exact) != 1:
                raise NotFoundError(
                    f"There is no job {wanted} at {host.host}:{host.port}.",
                    hint=f"See its jobs with `tunefleet control list --remote {host.host}:{host.port}`.",
                ) from None
            return cls._other_port(host, exact[0])
        return cls(wanted, client, None)

    @classmethod
    def _other_port(cls, host: RemoteHost, item: dict[str, Any]) -> JobSteering:
        job_id, port = str(item["job_id"]), int(item.get("port") or 0)
        for candidate in (host, RemoteHost(host.host, port, host.token)):
            client = ControlClient(candidate, job_id)
            try:
                client.status()
            except NotFoundError:
                continue
            return cls(job_id, client, None)
        raise NotFoundError(f"Job {job_id} does not answer at {host.host}.")

    @property
    def live(self) -> bool:
        """Whether there is a process to speak to."""
        return self._client is not None

    def status(self) -> dict[str, Any]:
        """Return where the job stands: from its process, or from what it left.

        Raises:
            NotFoundError: If it left nothing.
            UnreachableError: If a job elsewhere does not answer.
        """
        if self._client is not None:
            try:
                return {**self._client.status(), "live": True}
            except (UnreachableError, NotFoundError):
                if self.found is None:
                    raise
        left = self.found.last_status() if self.found is not None else None
        if left is None:
            raise NotFoundError(f"Job {self.job_id} has ended and left no status.")
        alive = self.found is not None and self.found.live is None
        found = {**status_view(self.job_id, left.model_dump(mode="json")), "live": alive, "eta_s": None}
        if not alive and left.state in ("starting", "running"):
            found["status"] = "killed"  # it did not live to write how it ended
        return found

    def send(self, command: str, data: dict[str, Any] | None = None) -> ControlReply:
        """Ask for something.

        Raises:
            ConflictError: If the job takes no commands: it has ended, or it is another machine's.
        """
        if self._client is None:
            raise ConflictError(self._why_not(), hint="See the live jobs with `tunefleet control list`.")
        return self._client.send(command, data, f"cmd-{uuid.uuid4().hex[:12]}")

    def outcome(self, command_id: str) -> CommandState:
        """Return what became of a command; also when the process is gone since.

        Raises:
            NotFoundError: If nobody knows it.
            UnreachableError: If a job elsewhere does not answer any more.
        """
        # Asked before its answer: a process that ends in between has written down what it did.
        gone = self._gone()
        asked, silence = self._ask(command_id)
        state = asked if asked is not None and not gone else self._written(command_id) or asked
        if state is None:
            raise silence or NotFoundError(f"Job {self.job_id} knows no command {command_id}.")
        if gone and not is_settled(state):
            return state.model_copy(update={"state": "failed", "message": "the process ended before it was done"})
        return state

    def await_end(self, timeout_s: float) -> bool:
        """Wait until the process of a job of this machine is gone, and with it what it held; False if it is not.

        Of a job elsewhere nothing is known: True.
        """
        deadline = time.monotonic() + timeout_s
        while self.found is not None and not self._gone():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        return True

    def _ask(self, command_id: str) -> tuple[CommandState | None, TunefleetError | None]:
        if self._client is None:
            return None, None
        try:
            return self._client.state(command_id), None
        except (UnreachableError, NotFoundError, ConflictError) as error:
            return None, error

    def _gone(self) -> bool:
        found = self.found
        return found is not None and (found.endpoint is None or not is_surely_alive(found.endpoint))

    def _written(self, command_id: str) -> CommandState | None:
        folders = (self.found.job_folder, self.found.folder) if self.found is not None else ()
        written = [read_json(JobFolder(folder).commands_json) or {} for folder in folders if folder is not None]
        for item in (item for file in written for item in file.get("commands", [])):
            if item.get("command_id") == command_id:
                try:
                    return CommandState.model_validate(item)
                except ValidationError as error:
                    logger.debug("An outcome cannot be read: %s", error)
        return None

    def _why_not(self) -> str:
        found = self.found
        if found is not None and found.endpoint is not None and not found.here:
            return f"Job {self.job_id} runs on {found.endpoint.hostname}, and is steered from there."
        left = found.last_status() if found is not None else None
        if left is None:
            return f"Job {self.job_id} has ended; it takes no commands."
        if left.state not in FINAL_STATES:
            return f"Job {self.job_id} was killed at step {left.step}; it takes no commands."
        return f"Job {self.job_id} is {left.state} at step {left.step}; it takes no commands."


# Those that are done when their checkpoint is durable; the others when they are applied.
SAVING = frozenset({ControlCommand.SAVE_CHECKPOINT, ControlCommand.SAVE_AND_STOP, ControlCommand.PAUSE})

_EVERY_S = (0.02, 0.25)


def is_settled(state: CommandState) -> bool:
    """Tell whether nothing more will become of a command."""
    return state.state in ("durable", "failed") or (state.state == "applied" and state.command not in SAVING)


def wait_for(
    ask: Callable[[], CommandState], timeout_s: float | None, on_look: Callable[[CommandState], None] | None = None
) -> CommandState:
    """Ask again and again until a command is settled, or the time is over; return its last state."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause_s, longest_s = _EVERY_S
    while True:
        state = ask()
        if on_look is not None:
            on_look(state)
        if is_settled(state) or (deadline is not None and time.monotonic() >= deadline):
            return state
        time.sleep(pause_s)
        pause_s = min(longest_s, pause_s * 1.5)
