"""Runs a user's command as a job in the foreground (`tunefleet run`): locks, process, signals, end.

The command runs in this process group with this terminal, so that Ctrl-C reaches it directly. SIGTERM pauses the
training, so that nothing is lost when the machine shuts down; a second SIGTERM is forwarded to the command.

If standard output is a terminal, the command gets a pseudo-terminal, so that progress bars and colors work; otherwise
a pipe.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tunefleet.errors import ConflictError, MachineError, TunefleetError
from tunefleet.runtime import job_log, locks
from tunefleet.runtime.control import JobController, LocalJob, list_jobs, wait_for
from tunefleet.runtime.exit_classification import read_status
from tunefleet.runtime.gpu import gpu_locks
from tunefleet.schemas.control import ControlCommand
from tunefleet.schemas.job_folder import Job, JobFolder, JobStatus
from tunefleet.trainer_control import process_identity
from tunefleet.trainer_control.autoload import inject, trainings
from tunefleet.trainer_control.files import make_private, read_json, write_json

logger = logging.getLogger(__name__)
_PATIENCE_S = 2.0
# How long a pause may take: saving a large checkpoint takes minutes.
_PAUSE_S = 600.0
_STALE = ("exit.json", "status.json", "cancel.json", "end.json", "process.json")
_CHUNK_BYTES = 1 << 16
_REST_S = 1.0


class Tee:
    """Output of a command, copied to the terminal and to a log."""

    def __init__(self, log: Path, streams: tuple[int, int] = (1, 2)) -> None:
        self._streams = streams
        self._path = log
        self._cutting = threading.Lock()
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._threads: list[threading.Thread] = []
        self._terminals: list[tuple[int, int]] = []
        self._ends: list[int] = []
        self._resized: object = None

    def __enter__(self) -> Tee:
        out, err = self._streams
        # One pseudo-terminal for both streams keeps their order.
        self._ends = [self._open(out)]
        self._ends.append(os.dup(self._ends[0]) if os.isatty(out) and os.isatty(err) else self._open(err))
        if self._terminals and threading.current_thread() is threading.main_thread():
            self._resized = signal.signal(signal.SIGWINCH, lambda *_: self._resize())
        return self

    @property
    def ends(self) -> tuple[int, int]:
        """The descriptors for the command's standard output and standard error."""
        return self._ends[0], self._ends[1]

    def started(self) -> None:
        """Close this process's copies of the command's descriptors, so that the readers see the end of the output."""
        for fd in self._ends:
            os.close(fd)
        self._ends = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.started()
        for thread in self._threads:
            # With a timeout: a background process of the command may keep its output open forever.
            thread.join(_REST_S)
        if self._resized is not None:
            signal.signal(signal.SIGWINCH, self._resized)  # type: ignore[arg-type]
        os.close(self._log)

    def _open(self, shown: int) -> int:
        if os.isatty(shown):
            ours, theirs = os.openpty()
            tty.setraw(theirs)  # the real terminal does the line processing
            self._terminals.append((ours, shown))
            self._resize()
        else:
            ours, theirs = os.pipe()
        thread = threading.Thread(target=self._copy, args=(ours, shown), name="tunefleet-tee", daemon=True)
        thread.start()
        self._threads.append(thread)
        return theirs

    def _copy(self, source: int, shown: int) -> None:
        silent = False
        while True:
            try:
                data = os.read(source, _CHUNK_BYTES)
            except OSError:
                data = b""  # EIO is the end of a pseudo-terminal
            if not data:
                os.close(source)
                return
            # A full disk must not stop the command, whose output is in the terminal anyway. The lock keeps the other
            # stream from writing during a cut.
            with contextlib.suppress(OSError), self._cutting:
                os.write(self._log, data)
                job_log.shorten(self._path, job_log.LIMIT_BYTES)
            if not silent:
                silent = not _write_all(shown, data)

    def _resize(self) -> None:
        for ours, shown in self._terminals:
            try:
                size = fcntl.ioctl(shown, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
                fcntl.ioctl(ours, termios.TIOCSWINSZ, size)
            except OSError:
                continue  # closed meanwhile


def _write_all(fd: int, data: bytes) -> bool:
    """Write all data; False once the reader is gone."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended.

    Args:
        status: Last status of the training; None if it reported nothing.
    """

    returncode: int
    status: JobStatus | None
    attached: bool
    imported: bool

    @property
    def exit_code(self) -> int:
        """Exit code as a shell reports it."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode


class ForegroundRun:
    """One launch of a command as a job."""

    def __init__(
        self,
        folder: JobFolder,
        job: Job,
        environment: Mapping[str, str],
        *,
        streams: tuple[int, int] = (1, 2),
        say: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._job = job
        self._environment = dict(environment)
        self._streams = streams
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._pausing: threading.Thread | None = None

    def run(self) -> RunEnd:
        """Run the command until it ends.

        Raises:
            ConflictError: If the job is already running.
            MachineError: If a GPU is in use, or the command does not exist.
        """
        make_private(self._folder.root)
        with contextlib.ExitStack() as held:
            fds = self._hold(held)
            for name in _STALE:
                (self._folder.root / name).unlink(missing_ok=True)
            write_json(self._folder.job_json, self._job.model_dump(mode="json"), sync=True)
            site = inject.write_site(self._folder.root)
            before = self._install_handlers()
            try:
                returncode = self._run(site, fds)
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
        return self._ended(returncode)

    def _hold(self, held: contextlib.ExitStack) -> list[int]:
        lock = locks.take(self._folder.lock, patience_s=_PATIENCE_S)
        if lock is None:
            raise ConflictError(
                f"{self._job.job_id} is already running.", hint=f"Run `tunefleet control watch {self._job.job_id}`."
            )
        held.callback(os.close, lock)
        ledger = gpu_locks.ledger_dir(Path(self._job.endpoint_dir or self._folder.root))
        claimed = gpu_locks.claim(ledger, self._job.gpus, self._job.job_id)
        for fd in claimed:
            held.callback(os.close, fd)
        return [lock, *claimed]

    def _run(self, site: Path, fds: list[int]) -> int:
        spec, environment = self._job.spec, dict(self._environment)
        paths = [str(site), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        environment.update(self._job.env)
        if self._job.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self._job.gpus)
        offset = job_log.end(self._folder.log)
        with Tee(self._folder.log, self._streams) as tee:
            out, err = tee.ends
            try:
                self._process = subprocess.Popen(
                    spec["command"], cwd=spec["cwd"], env=environment, stdout=out, stderr=err, pass_fds=fds
                )
            except OSError as error:
                raise MachineError(
                    f"Cannot run {spec['command'][0]}: {error.strerror or error}.",
                    hint="Check the name of the command and the working directory.",
                ) from None
            tee.started()
            self._note(self._process.pid, offset)
            returncode = self._process.wait()
        pid = self._process.pid
        end = {"launch": self._job.launch, "pid": pid, "returncode": returncode, "at": time.time()}
        write_json(self._folder.exit_json, end, sync=True)
        return returncode

    def _note(self, pid: int, offset: int) -> None:
        process = {
            "launch": self._job.launch,
            "pid": pid,
            "process_started_at": process_identity.process_started_at(pid),
            "boot_id": process_identity.boot_id(),
            "started_at": time.time(),
            "log_offset": offset,
            "warm": False,
            "keeper_pid": os.getpid(),
            "keeper_started_at": process_identity.process_started_at(os.getpid()),
        }
        write_json(self._folder.process_json, process, sync=True)

    def _install_handlers(self) -> dict[signal.Signals, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        handlers: dict[signal.Signals, Any] = {signal.SIGINT: self._interrupted, signal.SIGTERM: self._terminated}
        return {number: signal.signal(number, handler) for number, handler in handlers.items()}

    def _interrupted(self, *_: Any) -> None:
        # Ctrl-C in the terminal has reached the command as well; a signal from elsewhere only this process.
        if self._process is not None and not _in_foreground():
            self._process.send_signal(signal.SIGINT)

    def _terminated(self, *_: Any) -> None:
        if self._process is None:
            return
        if self._pausing is not None:
            self._process.terminate()
            return
        self._pausing = threading.Thread(target=self._pause, name="tunefleet-pause", daemon=True)
        self._pausing.start()

    def _pause(self) -> None:
        """Pause the training; forward SIGTERM to a command that is not training."""
        process = self._process
        if process is None or self._job.endpoint_dir is None:
            return
        try:
            steering = JobController.of(self._found(Path(self._job.endpoint_dir)))
            reply = steering.send(ControlCommand.PAUSE.value)
            self._say("SIGTERM: pausing; send it again to end the command immediately.")
            state = wait_for(lambda: steering.outcome(reply.command_id), _PAUSE_S)
        except TunefleetError as error:
            self._say(f"Forwarding SIGTERM: the training run cannot be paused ({error.message.rstrip('.')}).")
            process.terminate()
            return
        if state.state != "durable":
            self._say(f"The pause failed; training continues: {state.message or state.state}")
            self._pausing = None

    def _found(self, endpoints_dir: Path) -> LocalJob:
        found = next((job for job in list_jobs(endpoints_dir) if job.job_id == self._job.job_id), None)
        if found is None:
            raise ConflictError("no training is running")
        return found

    def _ended(self, returncode: int) -> RunEnd:
        attached = any(item.get("launch") == self._job.launch for item in trainings.recorded(self._folder.root))
        status = read_status(self._folder)
        if status is not None and status.state in ("starting", "running"):
            status = self._close_status(status, returncode)
        return RunEnd(returncode, status, attached, (self._folder.root / "attach" / inject.SEEN).exists())

    def _close_status(self, status: JobStatus, returncode: int) -> JobStatus:
        """Write the end of a training that could not write it itself."""
        fields = read_json(self._folder.status_json) or {}
        how = f"by {signal.Signals(-returncode).name}" if returncode < 0 else f"with exit code {returncode}"
        state = "completed" if returncode == 0 else "killed" if returncode < 0 else "failed"
        changes: dict[str, Any] = {"state": state, "at": time.time()}
        if returncode != 0:
            changes |= {"error": f"The command ended {how} during training.", "error_kind": "bug"}
        write_json(self._folder.status_json, {**fields, **changes}, sync=True)
        return status.model_copy(update=changes)


def _in_foreground() -> bool:
    """Whether Ctrl-C in this terminal reaches the command directly."""
    for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None and stream.isatty():
                return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
        except (OSError, ValueError):
            continue
    return False
