"""Who else uses the GPUs of this machine, and when a job of ours makes way for them.

A process is somebody else's if neither it nor an ancestor holds the GPU's lock in the ledger, or is a warm engine of
this user's: a notebook, a game, the job of another user. A desktop is none: what only draws and holds little memory is
ignored. Where the driver names no processes (WSL), memory in use on a GPU that no job of ours has claimed says the
same. Inside a container the driver names processes by numbers of the host: what this process table does not know is
not counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from tunefleet.runtime import locks
from tunefleet.runtime.gpu import gpus
from tunefleet.runtime.gpu.info import GpuFigures, GpuProcess, read_gpus
from tunefleet.runtime.monitor.stack_dumps import names
from tunefleet.runtime.warm import engine_registry

logger = logging.getLogger(__name__)

EVERY_S: Final = 2.0
# A process that only draws counts from here on: a game, but no desktop and no browser.
_DESKTOP_BYTES: Final = 1 << 30
# Share of a GPU's memory in use that says that somebody is there, if the driver names no processes.
_MUCH: Final = 0.25


def others_on(gpu: GpuFigures, ledger: Path) -> str | None:
    """Return who uses a GPU beside our jobs, in words; None if nobody does."""
    if gpu.processes is None:
        return _by_memory(gpu, ledger)
    pids = [each.pid for each in gpu.processes if _counts(each) and not is_ours(ledger, gpu.uuid, each.pid)]
    return names(pids) or None


def is_ours(ledger: Path, uuid: str, pid: int) -> bool:
    """Tell whether a process belongs to the job that has claimed a GPU, or to a warm engine that makes way for one."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.parents()]
    except psutil.Error:
        return False
    file = gpus.lock_file(ledger, uuid)
    return any(locks.holds(each.pid, file) for each in family) or engine_registry.is_one(
        [each.pid for each in family], uuid
    )


def _counts(process: GpuProcess) -> bool:
    return process.kind == "compute" or (process.memory_bytes or 0) >= _DESKTOP_BYTES


def _by_memory(gpu: GpuFigures, ledger: Path) -> str | None:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    if not used or not total or used < _MUCH * total or gpus.holder(ledger, gpu.uuid) is not None:
        return None
    if engine_registry.is_on(gpu.uuid):
        return None
    return f"somebody ({used / (1 << 30):.1f} GiB in use)"


@dataclass(slots=True)
class _Seen:
    """A GPU as the sentry remembers it."""

    who: str | None = None
    looks: int = 0
    """How many looks in a row somebody was there."""
    last_at: float | None = None


class GpuSentry:
    """Looks at the GPUs every two seconds, oftener if `idle_s` is short, and remembers who was there.

    One for a worker, an agent or a run.
    """

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
        self._seen: dict[str, _Seen] = {}
        self._told: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-sentry", daemon=True)

    def start(self, on_change: Callable[[], None] | None = None) -> None:
        """Look again and again, in a thread."""
        self._on_change = on_change
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stop.set()

    def look(self) -> None:
        """Ask the driver; a GPU that it does not name now is remembered as it was."""
        figures = self._read()
        found = {gpu.uuid: others_on(gpu, self._ledger) for gpu in figures}
        with self._lock:
            for uuid, who in found.items():
                self._remember(self._seen.setdefault(uuid, _Seen()), who)
        after = self.in_use()
        # Against what was told, not against a moment ago: a GPU becomes free by time alone, between two looks.
        told, self._told = self._told, frozenset(after)
        for uuid in self._told - told:
            logger.info("GPU %s is used by %s", uuid, after[uuid])
        if self._told != told and self._on_change is not None:
            self._on_change()

    def in_use(self) -> dict[str, str]:
        """Return the GPUs that others use, or used until less than `idle_s` ago, each with who that is or was."""
        now = self._clock()
        with self._lock:
            return {
                uuid: seen.who or "another process"
                for uuid, seen in self._seen.items()
                if seen.last_at is not None and (seen.looks or now - seen.last_at < self._idle_s)
            }

    def crowded(self) -> bool:
        """Tell whether there are GPUs, and others use all of them."""
        with self._lock:
            known = set(self._seen)
        return bool(known) and known <= self.in_use().keys()

    def intruder(self, uuids: Sequence[str]) -> str | None:
        """Return who uses one of these GPUs now; seen twice in a row, so that a glance of a tool does not count."""
        with self._lock:
            there = [self._seen[uuid] for uuid in uuids if uuid in self._seen]
            return next((seen.who for seen in there if seen.looks >= 2), None)

    def quiet(self, uuids: Sequence[str]) -> bool:
        """Tell whether nobody else has used these GPUs for `idle_s`."""
        return not self.in_use().keys() & set(uuids)

    def _remember(self, seen: _Seen, who: str | None) -> None:
        seen.looks = seen.looks + 1 if who is not None else 0
        if who is not None:
            seen.who, seen.last_at = who, self._clock()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self.look()
            except Exception:
                # The edge of the thread: a fault of the driver's library must not end the watch.
                logger.exception("The GPUs could not be looked at; trying again")
