"""Sends commands and pauses of the server to a running job until they are accepted, and reports their outcome."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from tunefleet.errors import ConflictError, InputError, MachineError, NotFoundError, TunefleetError, UnreachableError
from tunefleet.runtime.control.job_control import is_settled
from tunefleet.schemas.control import CommandState, ControlCommand
from tunefleet.schemas.worker_link import Command, CommandOutcome, Reached, pause_id
from tunefleet.worker.context import WorkerContext
from tunefleet.worker.interfaces import Handle
from tunefleet.worker.mailbox import Mailbox
from tunefleet.worker.outbox import Outbox
from tunefleet.worker.state import AttemptRecord

_POLL_S: Final = 0.1
_SETTLED: Final = frozenset({"durable", "failed"})
# Pause before a retry of a cancel that a full disk has prevented.
_CANCEL_PAUSE_S: Final = 2.0
# How long a job may take to exit after SIGKILL was due; a process in uninterruptible sleep may need a while.
_ENDING_S: Final = 120.0
logger = logging.getLogger(__name__)
# Poll interval for the state of commands.
_ASK_S: Final = 0.2
# How long a training job may accept no command before its commands fail.
_UNRESPONSIVE_S: Final = 120.0
# Phases in which a controllable job accepts commands; `running` is a user command that may or may not train.
_AT_WORK: Final = frozenset({"training", "running"})


class Steering:
    """Delivers the server's commands to one job. Called from the attempt's thread only."""

    def __init__(
        self, outbox: Outbox, mailbox: Mailbox, record: Callable[[], AttemptRecord], note: Callable[..., None]
    ) -> None:
        self._outbox = outbox
        self._mailbox = mailbox
        self._record = record
        self._note = note
        self._waiting: dict[str, Command] = {}
        # Commands that an earlier process of this worker sent are still tracked.
        self._followed = {command.command_id: command for command in record().commands}
        self._reported: dict[str, str] = {}
        self._wishes: dict[str, int] = {}
        self._next_look = 0.0
        self._unresponsive_since: float | None = None
        self._paused = False
        if record().suspended:
            self.launched_again()

    def obey(self, handle: Handle) -> None:
        """Send new commands, as far as the job accepts them, and report their state."""
        self._heed_wish()
        for command in self._mailbox.take_commands():
            if command.command_id not in self._followed:
                self._waiting.setdefault(command.command_id, command)
        if not (self._waiting or self._followed) or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _ASK_S
        for command in list(self._waiting.values()):
            self._send(handle, command)
        self._look(handle)

    def launched_again(self) -> None:
        """Note that the job is a new process: a pause that the last one did not reach is sent again."""
        self._paused = False
        pauses = [command for command in self._followed.values() if command.command == ControlCommand.PAUSE]
        for command in pauses:
            del self._followed[command.command_id]
            self._wishes.pop(command.command_id, None)

    def last_look(self, handle: Handle) -> None:
        """Report the final state of the commands after the job's end; the server fails those without one."""
        self._look(handle)

    def _heed_wish(self) -> None:
        desired, offer = self._mailbox.desired, self._record().offer
        if desired is None:
            return
        if desired.action == "run":
            for command_id in self._waiting.keys() & self._wishes.keys():
                del self._waiting[command_id]
            # An accepted pause cannot be undone: `run` is not confirmed, and the server resumes the task afterwards.
            if not self._paused and not any(each.command == ControlCommand.PAUSE for each in self._followed.values()):
                self._reach(desired.generation)
        elif desired.action == "pause":
            command_id = pause_id(offer.task_id, offer.attempt, desired.generation)
            if command_id in self._followed:
                self._reach(desired.generation)
            elif command_id not in self._wishes:
                self._wishes[command_id] = desired.generation
                command = Command(token=offer.token, command_id=command_id, command=ControlCommand.PAUSE)
                self._waiting[command_id] = command

    def _reach(self, generation: int) -> None:
        if self._reported.get("generation") != str(generation):
            self._reported["generation"] = str(generation)
            self._outbox.reach(Reached(token=self._record().offer.token, generation=generation))

    def _send(self, handle: Handle, command: Command) -> None:
        try:
            handle.command(command.command, command.data, command.command_id)
        except (ConflictError, UnreachableError) as error:
            # Still loading, or busy: retried until the job accepts the command or ends.
            if self._is_unresponsive(handle):
                why = f"{error} The job accepted no command for {_UNRESPONSIVE_S:g} s: not training, or not listening."
                self._settle(command, CommandOutcome(command_id=command.command_id, state="failed", message=why))
            return
        except (InputError, NotFoundError) as error:
            self._settle(command, CommandOutcome(command_id=command.command_id, state="failed", message=str(error)))
            return
        except TunefleetError as error:
            logger.warning("Could not send command %s, retrying: %s", command.command_id, error)
            return
        self._unresponsive_since = None
        self._waiting.pop(command.command_id, None)
        self._followed[command.command_id] = command
        self._keep()
        self._outbox.outcome(CommandOutcome(command_id=command.command_id, state="acknowledged"))
        self._reach_of(command)
        logger.info("Task %s accepted command %s.", self._record().offer.task_id, command.command)

    def _is_unresponsive(self, handle: Handle) -> bool:
        status = handle.status()
        if status is None or status.state != "running" or status.phase not in _AT_WORK:
            self._unresponsive_since = None
            return False
        now = time.monotonic()
        self._unresponsive_since = self._unresponsive_since if self._unresponsive_since is not None else now
        return now - self._unresponsive_since > _UNRESPONSIVE_S

    def _look(self, handle: Handle) -> None:
        for command in list(self._followed.values()):
            try:
                state = handle.command_state(command.command_id)
            except TunefleetError as error:
                logger.debug("State of command %s is not known yet: %s", command.command_id, error)
                continue
            self._report(command, state)

    def _report(self, command: Command, state: CommandState) -> None:
        if state.state == "pending" or self._reported.get(command.command_id) == state.state:
            return
        self._reported[command.command_id] = state.state
        outcome = CommandOutcome(
            command_id=command.command_id,
            state=state.state,
            step=state.step,
            checkpoint=state.checkpoint,
            message=state.message,
        )
        if is_settled(state):
            self._settle(command, outcome)
        else:
            self._outbox.outcome(outcome)

    def _settle(self, command: Command, outcome: CommandOutcome) -> None:
        followed = self._followed.pop(command.command_id, None)
        self._waiting.pop(command.command_id, None)
        self._outbox.outcome(outcome)
        if followed is not None:
            self._paused = self._paused or (followed.command == ControlCommand.PAUSE and outcome.state != "failed")
            self._keep()
        else:
            self._reach_of(command)

    def _reach_of(self, command: Command) -> None:
        generation = self._wishes.get(command.command_id)
        if generation is not None:
            self._reach(generation)

    def _keep(self) -> None:
        try:
            self._note(commands=tuple(self._followed.values()))
        except MachineError as error:
            # The outcome is reported all the same; only a restart of this worker would lose track of the command.
            logger.warning("%s", error)


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
