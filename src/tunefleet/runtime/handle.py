"""One launch of a job: its status and its end, and how to control or end it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from tunefleet.errors import ConflictError, NotFoundError, TunefleetError, UnreachableError
from tunefleet.runtime import locks
from tunefleet.runtime.control import ControlClient, find_endpoint, withdraw_endpoint
from tunefleet.runtime.exit_classification import JobEnd, classify, read_process, read_status
from tunefleet.schemas.control import CommandState, ControlCommand, ControlReply
from tunefleet.schemas.job_folder import Job, JobFolder, JobStatus
from tunefleet.trainer_control import process_identity
from tunefleet.trainer_control.files import read_json, write_json

logger = logging.getLogger(__name__)

_LOOK_S = 0.05
_AFTER_TERM_S = 5.0
_AFTER_KILL_S = 10.0


class JobHandle:
    """A launch, running or not; its state is in the job folder, so that any process can create a handle."""

    def __init__(self, job: Job, folder: JobFolder, endpoints_dir: Path) -> None:
        self.job = job
        self.folder = folder
        self._endpoints_dir = endpoints_dir
        self._end: JobEnd | None = None
        self._cancelling: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def started(self) -> bool:
        """Whether this launch ever had a trainer process."""
        process = read_process(self.folder)
        return process is not None and process.launch == self.job.launch

    @property
    def alive(self) -> bool:
        """Whether any process of the job is running."""
        return locks.is_held(self.folder.lock)

    def poll(self) -> JobEnd | None:
        """Return how the launch ended, or None while it runs. Cheap: a few small files."""
        if self._end is None and self._has_ended():
            self._end = classify(self.folder, self.job.launch, process_identity.boot_id())
        return self._end

    def wait(self, timeout_s: float | None = None) -> JobEnd | None:
        """Wait for the end; None on a timeout."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (end := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                return None
            time.sleep(_LOOK_S)
        return end

    def status(self) -> JobStatus | None:
        """Return the last status that the trainer wrote; None before the first one."""
        return read_status(self.folder)

    def command(self, name: str, data: dict[str, Any] | None = None, command_id: str | None = None) -> ControlReply:
        """Send a command to the trainer, which executes it at the end of the current step.

        Raises:
            ConflictError: If it does not accept commands: not training yet, or not any more.
            UnreachableError: If it does not respond.
        """
        endpoint = find_endpoint(self._endpoints_dir, self.job.job_id)
        if endpoint is None:
            status = self.status()
            phase = f"it is {status.state} ({status.phase})" if status else "it has not started"
            raise ConflictError(f"Job {self.job.job_id} accepts no commands now: {phase}.")
        return ControlClient(endpoint).send(name, data, command_id)

    def command_state(self, command_id: str) -> CommandState:
        """Return the state of a command, even if the trainer is gone.

        Raises:
            NotFoundError: If the job never accepted it.
        """
        endpoint = find_endpoint(self._endpoints_dir, self.job.job_id)
        if endpoint is not None:
            try:
                return ControlClient(endpoint).state(command_id)
            except UnreachableError as error:
                logger.debug("Reading the outcome from the folder instead: %s", error)
        for command in (read_json(self.folder.commands_json) or {}).get("commands", []):
            if command.get("command_id") == command_id:
                return CommandState.model_validate(command)
        raise NotFoundError(f"Job {self.job.job_id} has no command {command_id}.")

    def cancel(self, grace_s: float = 30.0) -> None:
        """End the job: abort at the end of the step, SIGTERM after the grace period, SIGKILL after that.

        Returns immediately; `poll` returns the end. A trainer that accepts no commands yet gets SIGTERM immediately.
        """
        with self._lock:
            if self._cancelling is not None or self.poll() is not None:
                return
            self._note_cancel()
            self._cancelling = threading.Thread(
                target=self._end_it, args=(grace_s,), name=f"cancel-{self.job.job_id}", daemon=True
            )
            self._cancelling.start()

    def _note_cancel(self) -> None:
        # Before the job is ended: a later process that adopts it must not take its end for a crash.
        try:
            write_json(self.folder.cancel_json, {"launch": self.job.launch, "at": time.time()}, sync=True)
        except OSError as error:
            # A cancel must work on a full disk, too.
            logger.warning("Cancelling job(%s), but could not store that: %s", self.job.job_id, error)

    def kill(self) -> None:
        """End the job and all its processes with SIGKILL; saved checkpoints stay.

        For a trainer that hangs; its end is classified as killed. Returns immediately; `poll` returns the end.
        """
        process = read_process(self.folder)
        if process is None or process.launch != self.job.launch:
            return
        self.signal_group(signal.SIGKILL)
        # Ranks have process groups of their own. The parent process is spared, since it records the exit code.
        for pid in locks.holders(self.folder.lock):
            if pid != process.keeper_pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def acknowledge(self) -> None:
        """Record on disk that the end was read, so that `Supervisor.adopt` no longer returns the job."""
        if self._end is not None:
            write_json(self.folder.end_json, self._end.model_dump(mode="json"), sync=True)
            withdraw_endpoint(self._endpoints_dir, self.job.job_id, self.folder.root)

    def signal_group(self, number: signal.Signals) -> bool:
        """Send a signal to the trainer's process group; returns whether it was sent."""
        # Verified by boot and start time: the pid may have been reused by an unrelated process.
        process = read_process(self.folder)
        if process is None or process.launch != self.job.launch or process.boot_id != process_identity.boot_id():
            return False
        if process.process_started_at is None or process.process_started_at != process_identity.process_started_at(
            process.pid
        ):
            return False
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return False
        return True

    def _has_ended(self) -> bool:
        if self._exit_written():
            return True
        if self.alive and not end_leftovers(self.folder):
            return False
        # Checked again: the lock may be free now. Without an exit record the parent process was killed.
        return not self.alive

    def _exit_written(self) -> bool:
        return (read_json(self.folder.exit_json) or {}).get("launch") == self.job.launch

    def _end_it(self, grace_s: float) -> None:
        try:
            if self._abort() and self.wait(grace_s) is not None:
                return
            for number, patience_s in ((signal.SIGTERM, _AFTER_TERM_S), (signal.SIGKILL, _AFTER_KILL_S)):
                if self.poll() is not None:
                    return
                logger.info("job(%s): %s to its process group", self.job.job_id, number.name)
                self.signal_group(number)
                if self.wait(patience_s) is not None:
                    return
            logger.error("job(%s) could not be ended", self.job.job_id)
        except Exception:
            # Top of the thread: the next cancel tries again.
            logger.exception("job(%s) could not be cancelled", self.job.job_id)
        finally:
            with self._lock:
                self._cancelling = None

    def _abort(self) -> bool:
        try:
            self.command(ControlCommand.ABORT)
        except TunefleetError as error:
            logger.debug("Ending job(%s) by a signal: %s", self.job.job_id, error)
            return False
        return True


def end_leftovers(folder: JobFolder) -> bool:
    """Kill processes that hold a job's lock after the end of trainer and parent process; returns whether both ended."""
    process = read_process(folder)
    if process is None or not process.keeper_pid:
        return False
    if (read_json(folder.job_json) or {}).get("launch") != process.launch:
        return False  # the parent of the next launch may hold the lock and not have written process.json yet
    known = ((process.pid, process.process_started_at), (process.keeper_pid, process.keeper_started_at))
    same_boot = process.boot_id == process_identity.boot_id()
    if same_boot and any(at is not None and process_identity.process_started_at(pid) == at for pid, at in known):
        return False
    for pid in locks.holders(folder.lock):
        logger.warning("%s: killing process %d, which is still running after its trainer ended", folder.root.name, pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return True
