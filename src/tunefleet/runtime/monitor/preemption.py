"""Detects other users of this machine's GPUs, and preempts launches for them without losing progress.

A process counts as another user if neither it nor an ancestor holds the GPU's lock in the ledger or is a warm engine of
this user: a store, a game, the job of another user. A desktop does not count: graphics processes with little memory
are ignored. If the driver does not list processes (WSL), memory in use on an unclaimed GPU counts instead. In a
container the driver lists pids of the host; unknown pids are ignored.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import psutil

from tunefleet.errors import ConflictError, NotFoundError, TunefleetError
from tunefleet.runtime import locks
from tunefleet.runtime.gpu import gpu_locks
from tunefleet.runtime.gpu.info import GpuFigures, GpuProcess, read_gpus
from tunefleet.runtime.monitor.stall_detector import names
from tunefleet.runtime.warm import engine_registry
from tunefleet.schemas.control import CommandState, ControlCommand, ControlReply
from tunefleet.schemas.job_folder import Job, JobStatus

_RETRY_S: Final = 2.0
# Pause after a failed save, which may take minutes on a slow disk; the training continues meanwhile.
_AFTER_FAILURE_S: Final = 60.0
logger = logging.getLogger(__name__)
EVERY_S: Final = 2.0
# A graphics process counts from this much memory on: a game, but not a desktop or a browser.
_DESKTOP_BYTES: Final = 1 << 30
# Fraction of a GPU's memory in use that counts as another user, if the driver does not list processes.
_BUSY_FRACTION: Final = 0.25


def others_on(gpu: GpuFigures, ledger: Path) -> str | None:
    """Return the other users of a GPU as text; None if there are none."""
    if gpu.processes is None:
        return _by_memory(gpu, ledger)
    pids = [each.pid for each in gpu.processes if _counts(each) and not is_ours(ledger, gpu.uuid, each.pid)]
    return names(pids) or None


def is_ours(ledger: Path, uuid: str, pid: int) -> bool:
    """Return whether a process belongs to the job that has claimed a GPU, or to a warm engine, which ends for a job."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.parents()]
    except psutil.Error:
        return False
    file = gpu_locks.lock_file(ledger, uuid)
    return any(locks.holds(each.pid, file) for each in family) or engine_registry.is_one(
        [each.pid for each in family], uuid
    )


def _counts(process: GpuProcess) -> bool:
    return process.kind == "compute" or (process.memory_bytes or 0) >= _DESKTOP_BYTES


def _by_memory(gpu: GpuFigures, ledger: Path) -> str | None:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    if not used or not total or used < _BUSY_FRACTION * total or gpu_locks.holder(ledger, gpu.uuid) is not None:
        return None
    if engine_registry.is_on(gpu.uuid):
        return None
    return f"another process ({used / (1 << 30):.1f} GiB in use)"


@dataclass(slots=True)
class _Observation:
    """Observations of one GPU."""

    who: str | None = None
    sightings: int = 0
    """Number of consecutive checks with another user."""
    last_at: float | None = None


class GpuContentionMonitor:
    """Checks the GPUs every two seconds, or more often if `idle_s` is short; one per worker, agent or run."""

    def __init__(
        self,
        ledger: Path,
        *,
        idle_s: float,
        read: Callable[[], Sequence[GpuFigures]] = read_gpus,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._idle_s = idle_s
        self._every_s = min(EVERY_S, idle_s / 4)
        self._read = read
        self._on_change: Callable[[], None] | None = None
        self._clock = clock
        self._seen: dict[str, _Observation] = {}
        self._reported: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-gpu_monitor", daemon=True)

    def start(self, on_change: Callable[[], None] | None = None) -> None:
        """Check repeatedly, in a thread.

        Args:
            on_change: Called when the set of GPUs in use has changed.
        """
        self._on_change = on_change
        self._thread.start()

    def close(self) -> None:
        """Stop checking."""
        self._stop.set()

    def look(self) -> None:
        """Check once; a GPU that the driver does not list now keeps its last state."""
        figures = self._read()
        found = {gpu.uuid: others_on(gpu, self._ledger) for gpu in figures}
        with self._lock:
            for uuid, who in found.items():
                self._remember(self._seen.setdefault(uuid, _Observation()), who)
        after = self.in_use()
        # Compared with the last report, not with the last check: a GPU becomes free by time alone, between two checks.
        before, self._reported = self._reported, frozenset(after)
        for uuid in self._reported - before:
            logger.info("GPU %s is in use by %s", uuid, after[uuid])
        if self._reported != before and self._on_change is not None:
            self._on_change()

    def in_use(self) -> dict[str, str]:
        """Return the GPUs that others use, or have used within `idle_s`: UUID → the current or last user."""
        now = self._clock()
        with self._lock:
            return {
                uuid: seen.who or "another process"
                for uuid, seen in self._seen.items()
                if seen.last_at is not None and (seen.sightings or now - seen.last_at < self._idle_s)
            }

    def all_in_use(self) -> bool:
        """Return whether there are GPUs, and all of them are in use by others."""
        with self._lock:
            known = set(self._seen)
        return bool(known) and known <= self.in_use().keys()

    def other_user(self, uuids: Sequence[str]) -> str | None:
        """Return another user of one of these GPUs."""
        # Seen twice in a row, so that a short access of a monitoring tool does not count.
        with self._lock:
            known = [self._seen[uuid] for uuid in uuids if uuid in self._seen]
            return next((seen.who for seen in known if seen.sightings >= 2), None)

    def unused(self, uuids: Sequence[str]) -> bool:
        """Return whether no one else has used these GPUs for `idle_s`."""
        return not self.in_use().keys() & set(uuids)

    def _remember(self, seen: _Observation, who: str | None) -> None:
        seen.sightings = seen.sightings + 1 if who is not None else 0
        if who is not None:
            seen.who, seen.last_at = who, self._clock()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self.look()
            except Exception:
                # Top of the thread: an error of the driver's library must not end the monitor.
                logger.exception("Could not check the GPUs, retrying")


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
