"""Commands from the backend: each is executed once, and its outcome is reported until the backend has stored it.

The backend repeats a command until then, also to the next agent on this folder, so `.agent/commands.json` stores them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from tunefleet.agent.jobs.job import AgentJob
from tunefleet.agent.jobs.job_queue import JobTable
from tunefleet.errors import ConflictError, InputError, NotFoundError, TunefleetError, UnreachableError
from tunefleet.schemas.control import ControlCommand
from tunefleet.schemas.training_protocol.training import AgentCommand, AgentOutcome, AgentVerb, JobState
from tunefleet.trainer_control.files import read_json, write_json
from tunefleet.validation_errors import summary

logger = logging.getLogger(__name__)

AdminCommandHandler = Callable[[AgentCommand], AgentOutcome]

_POLL_S: Final = 0.25
_MAX_STORED: Final = 500
_SETTLED: Final = frozenset({"applied", "durable", "failed"})


class CommandExecutor:
    """Executes commands. Safe to share between threads."""

    def __init__(
        self, job_table: JobTable, handler: AdminCommandHandler, folder: Path, on_outcome: Callable[[], None]
    ) -> None:
        self._job_table = job_table
        self._handler = handler
        self._file = folder / "commands.json"
        self._on_outcome = on_outcome
        self._lock = threading.RLock()
        self._open: dict[str, AgentCommand] = {}
        self._outcomes: dict[str, AgentOutcome] = {}
        self._unreported: set[str] = set()
        self._read()

    def take(self, commands: Iterable[AgentCommand]) -> None:
        """Execute new commands."""
        for command in commands:
            with self._lock:
                if command.command_id in self._outcomes:
                    if command.command_id not in self._open:
                        self._unreported.add(command.command_id)
                    continue
                # Stored before it is executed: the restarted agent must not execute the same restart again.
                self._set_outcome(AgentOutcome(command_id=command.command_id, state="acknowledged"))
            self._begin(command)

    def outcomes(self) -> tuple[AgentOutcome, ...]:
        """Return the outcomes to report."""
        with self._lock:
            return tuple(self._outcomes[command_id] for command_id in sorted(self._unreported))

    def stored(self, outcomes: Iterable[AgentOutcome], ids: Iterable[str]) -> None:
        """Mark outcomes as stored by the backend, unless they have changed since they were sent."""
        taken = set(ids)
        with self._lock:
            for outcome in outcomes:
                if outcome.command_id in taken and self._outcomes.get(outcome.command_id) == outcome:
                    self._unreported.discard(outcome.command_id)
            self._write()

    def run(self, stopping: threading.Event) -> None:
        """Track open commands until they are settled; the body of a thread."""
        while not stopping.wait(_POLL_S):
            for command in list(self._open.values()):
                try:
                    self._follow(command)
                except TunefleetError as error:
                    logger.debug("State of command %s is not known yet: %s", command.command_id, error)

    def _begin(self, command: AgentCommand) -> None:
        logger.info("Executing command %s%s.", command.command, f" of job {command.job_id}" if command.job_id else "")
        try:
            outcome = self._do(command)
        except TunefleetError as error:
            outcome = AgentOutcome(command_id=command.command_id, state="failed", message=str(error))
        if outcome is not None:
            self._set_outcome(outcome)

    def _do(self, command: AgentCommand) -> AgentOutcome | None:
        if command.job_id is None:
            if command.command not in set(AgentVerb):
                raise NotFoundError(f"Unknown command {command.command}. Commands: {', '.join(AgentVerb)}.")
            return self._handler(command)
        job = self._job_table.find(command.job_id)
        match command.command:
            case "resume":
                job.ask_resume(command.data.get("checkpoint_path"))
                return AgentOutcome(command_id=command.command_id, state="applied")
            case "cancel":
                job.ask_cancel()
            case ControlCommand.PAUSE:
                job.ask_pause()
            case _:
                self._send_to_trainer(job, command)
        with self._lock:
            self._open[command.command_id] = command
            self._write()
        return None

    def _send_to_trainer(self, job: AgentJob, command: AgentCommand) -> None:
        """Send a command to the trainer, with retries while the job is queued or loading."""
        if job.record.state not in (JobState.PENDING, JobState.RUNNING):
            raise ConflictError(f"Job {job.job_id} is not running: it is {job.record.state}.")
        if job.handle is None:
            return
        try:
            # Safe to repeat: the trainer executes each command id once.
            job.handle.command(command.command, command.data, command.command_id)
        except (ConflictError, UnreachableError) as error:
            logger.debug("job(%s) does not accept %s yet: %s", job.job_id, command.command, error)

    def _follow(self, command: AgentCommand) -> None:
        try:
            job = self._job_table.find(command.job_id or "")
            outcome = self._state_of(job, command)
        except (ConflictError, InputError) as error:
            outcome = AgentOutcome(command_id=command.command_id, state="failed", message=str(error))
        if outcome is not None:
            self._set_outcome(outcome)
            if outcome.state in _SETTLED and not (outcome.state == "applied" and _saves(command)):
                with self._lock:
                    self._open.pop(command.command_id, None)

    def _state_of(self, job: AgentJob, command: AgentCommand) -> AgentOutcome | None:
        record, known = job.record, {"command_id": command.command_id}
        if command.command == "cancel":
            return (
                AgentOutcome(**known, state="applied", message=f"The job is {record.state}.")
                if record.state.final
                else None
            )
        if command.command == ControlCommand.PAUSE:
            return self._pause_state(job, command)
        try:
            current = job.handle.command_state(command.command_id) if job.handle is not None else None
        except NotFoundError:
            current = None
        if current is None:
            self._send_to_trainer(job, command)
            return None
        if current.state != "pending":
            state = current.state
        elif record.state.final:
            state = "failed"
        else:
            return None
        return AgentOutcome(
            **known, state=state, step=current.step, checkpoint=current.checkpoint, message=current.message
        )

    def _pause_state(self, job: AgentJob, command: AgentCommand) -> AgentOutcome | None:
        record = job.record
        if record.state is JobState.PAUSED:
            end: dict[str, Any] = job.describe_end()
            return AgentOutcome(
                command_id=command.command_id, state="durable", step=end.get("step"), checkpoint=end.get("checkpoint")
            )
        if record.state is JobState.RUNNING and record.wish == "pause":
            return None
        why = record.warnings[-1] if record.warnings else f"The job is {record.state}."
        return AgentOutcome(command_id=command.command_id, state="failed", message=why)

    def _set_outcome(self, outcome: AgentOutcome) -> None:
        with self._lock:
            if self._outcomes.get(outcome.command_id) == outcome:
                return
            self._outcomes[outcome.command_id] = outcome
            self._unreported.add(outcome.command_id)
            self._write()
        self._on_outcome()

    def _write(self) -> None:
        kept = dict(list(self._outcomes.items())[-_MAX_STORED:])
        data = {
            "told": [outcome.model_dump(mode="json") for outcome in kept.values()],
            "untold": sorted(self._unreported),
            "open": [command.model_dump(mode="json") for command in self._open.values()],
        }
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(self._file, data, sync=True)

    def _read(self) -> None:
        data = read_json(self._file) or {}
        try:
            stored = [AgentOutcome.model_validate(entry) for entry in data.get("told", [])]
            commands = [AgentCommand.model_validate(entry) for entry in data.get("open", [])]
        except ValidationError as error:
            logger.warning("Could not read %s; commands may be executed again: %s", self._file, summary(error))
            return
        self._outcomes = {outcome.command_id: outcome for outcome in stored}
        self._open = {command.command_id: command for command in commands}
        self._unreported = set(data.get("untold", [])) & self._outcomes.keys()


def _saves(command: AgentCommand) -> bool:
    return command.command in (ControlCommand.SAVE_CHECKPOINT, ControlCommand.SAVE_AND_STOP)
