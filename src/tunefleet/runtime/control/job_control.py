"""Controls one job over its local port, through files, over a remote port, or reads its files after its end."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from tunefleet.errors import ConflictError, NotFoundError, TunefleetError, UnreachableError
from tunefleet.runtime.control.clients import ControlClient, FileControlClient, RemoteHost, status_view
from tunefleet.runtime.control.discovery import LocalJob, find_job, is_surely_alive
from tunefleet.schemas.control import CommandState, ControlCommand, ControlReply
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control.files import read_json
from tunefleet.trainer_control.journal.status import FINAL_STATES

logger = logging.getLogger(__name__)
# Commands that are settled once their checkpoint is durable; all others once they are applied.
SAVING = frozenset({ControlCommand.SAVE_CHECKPOINT, ControlCommand.SAVE_AND_STOP, ControlCommand.PAUSE})
_EVERY_S = (0.02, 0.25)


class _Client(Protocol):
    def send(self, command: str, data: dict[str, Any] | None = None, command_id: str | None = None) -> ControlReply: ...

    def state(self, command_id: str) -> CommandState: ...

    def status(self) -> dict[str, Any]: ...


class JobController:
    """Status, commands and outcomes of one job, running or not.

    Args:
        client: Connection to its process; None if the process is gone.
        found: The job on this machine; None for a remote job.
    """

    def __init__(self, job_id: str, client: _Client | None, found: LocalJob | None) -> None:
        self.job_id = job_id
        self.found = found
        self._client = client

    @classmethod
    def here(cls, endpoints_dir: Path, wanted: str) -> JobController:
        """Find a job of this machine by an id, a prefix or a job folder.

        Raises:
            InputError: If a prefix matches several jobs.
        """
        return cls.of(find_job(endpoints_dir, wanted))

    @classmethod
    def of(cls, job: LocalJob) -> JobController:
        """Control a job, running or not."""
        if job.endpoint is None or not job.live:
            return cls(job.job_id, None, job)
        return cls(job.job_id, ControlClient(job.endpoint) if job.endpoint.port else FileControlClient(job), job)

    @classmethod
    def elsewhere(cls, host: RemoteHost, wanted: str) -> JobController:
        """Find a job through any control port of another machine.

        Raises:
            NotFoundError: If the machine has no such job.
            UnreachableError: If the port does not respond.
        """
        client = ControlClient(host, wanted)
        try:
            client.status()
        except NotFoundError:
            # The port of another job, which lists the ports of all jobs on its machine.
            known = [item for item in host.jobs() if str(item.get("job_id", "")).startswith(wanted) and wanted]
            exact = [item for item in known if item.get("job_id") == wanted] or known
            if len(exact) != 1:
                raise NotFoundError(
                    f"Job {wanted} not found at {host.host}:{host.port}.",
                    hint=f"List its jobs with `tunefleet control list --remote {host.host}:{host.port}`.",
                ) from None
            return cls._other_port(host, exact[0])
        return cls(wanted, client, None)

    @classmethod
    def _other_port(cls, host: RemoteHost, item: dict[str, Any]) -> JobController:
        job_id, port = str(item["job_id"]), int(item.get("port") or 0)
        for candidate in (host, RemoteHost(host.host, port, host.token)):
            client = ControlClient(candidate, job_id)
            try:
                client.status()
            except NotFoundError:
                continue
            return cls(job_id, client, None)
        raise NotFoundError(f"Job {job_id} does not respond at {host.host}.")

    @property
    def live(self) -> bool:
        """Whether its process is running."""
        return self._client is not None

    def status(self) -> dict[str, Any]:
        """Return the status of the job, from its process or from its files.

        Raises:
            NotFoundError: If it left no status.
            UnreachableError: If a remote job does not respond.
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
            found["status"] = "killed"  # it was ended before it could write its end
        return found

    def send(self, command: str, data: dict[str, Any] | None = None) -> ControlReply:
        """Send a command.

        Raises:
            ConflictError: If the job accepts no commands: it has ended, or runs on another machine.
        """
        if self._client is None:
            raise ConflictError(self._why_not(), hint="List running jobs with `tunefleet control list`.")
        return self._client.send(command, data, f"cmd-{uuid.uuid4().hex[:12]}")

    def outcome(self, command_id: str) -> CommandState:
        """Return the state of a command, even if the process has ended since.

        Raises:
            NotFoundError: If the command is unknown.
            UnreachableError: If a remote job no longer responds.
        """
        # Checked before the request: a process that ends in between has written its outcomes.
        gone = self._gone()
        reported, error = self._ask(command_id)
        state = reported if reported is not None and not gone else self._written(command_id) or reported
        if state is None:
            raise error or NotFoundError(f"Job {self.job_id} has no command {command_id}.")
        if gone and not is_settled(state):
            return state.model_copy(update={"state": "failed", "message": "the process ended before executing it"})
        return state

    def await_end(self, timeout_s: float) -> bool:
        """Wait until the process of a local job is gone; False on a timeout.

        Returns True for a remote job, whose process cannot be checked.
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
                    logger.debug("Could not read an outcome: %s", error)
        return None

    def _why_not(self) -> str:
        found = self.found
        if found is not None and found.endpoint is not None and not found.here:
            return f"Job {self.job_id} runs on {found.endpoint.hostname}; control it from there."
        left = found.last_status() if found is not None else None
        if left is None:
            return f"Job {self.job_id} has ended and accepts no commands."
        if left.state not in FINAL_STATES:
            return f"Job {self.job_id} was killed at step {left.step} and accepts no commands."
        return f"Job {self.job_id} is {left.state} at step {left.step} and accepts no commands."


def is_settled(state: CommandState) -> bool:
    """Return whether the state of a command is final."""
    return state.state in ("durable", "failed") or (state.state == "applied" and state.command not in SAVING)


def wait_for(
    ask: Callable[[], CommandState], timeout_s: float | None, on_look: Callable[[CommandState], None] | None = None
) -> CommandState:
    """Poll until a command is settled, or the time is over; return its last state.

    Args:
        ask: Returns the current state.
        timeout_s: None for no limit.
        on_look: Called with each state.
    """
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
