"""Notices that a running job has come to a standstill.

What counts as life: a new journal record, always (one comes each second while steps or evaluation batches are taken),
and a change of phase. Outside of the steps, where a step's rhythm is not to be had (loading, tokenising, a long save,
the work after the last step), output in the log, written or read bytes and used processor time count, too. Within the
steps they do not: ranks that wait for one another in a collective spin for ever at full load.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from tunefleet.runtime.exit_classification import read_process, read_status
from tunefleet.runtime.monitor import stack_dumps
from tunefleet.schemas.job_folder import Job, JobFolder, JobProcess
from tunefleet.trainer_control import process_identity

logger = logging.getLogger(__name__)

# More than this between two looks says that the looker stood still itself.
_LONGEST_LOOK_S: Final = 5.0
_RHYTHMIC: Final = frozenset({"training", "evaluating"})
_BUSY_SHARE: Final = 0.05
_BUSY_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Stall:
    """A standstill that goes on."""

    for_s: float
    step: int
    phase: str
    where: str
    detail: str

    @property
    def sentence(self) -> str:
        """The standstill in words."""
        where = f" It stands at {self.where}." if self.where else ""
        said = next((line for line in self.detail.splitlines() if line.startswith("process ")), None)
        state = f" Its {said}." if said else ""
        return f"No journal record for {self.for_s:.0f} s, since step {self.step} ({self.phase}).{state}{where}"


class Watchdog:
    """Watches one launch of a job; begins anew with whoever adopts it.

    Args:
        clock: Monotonic seconds; those of a machine that sleeps do not count.
    """

    def __init__(
        self, folder: JobFolder, job: Job, after_s: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = folder
        self._journal = folder.journal_dir / f"{job.launch}.jsonl"
        self._launch = job.launch
        self._after_s = after_s
        self._clock = clock
        self._looked_at = clock()
        self._silent_s = 0.0
        self._signs: tuple[object, ...] = ()
        self._effort = _Effort()
        self._stall: Stall | None = None

    def look(self) -> Stall | None:
        """Return the standstill, if there is one; its stacks are dumped into the log once, when it is noticed.

        Cheap enough for once a second; the look that notices a standstill waits up to two seconds for the stacks.
        """
        now = self._clock()
        gap, self._looked_at = min(now - self._looked_at, _LONGEST_LOOK_S), now
        if self._alive(gap):
            if self._stall is not None:
                logger.info("job %s goes on after %.0f s", self._folder.root.name, self._silent_s)
            self._silent_s, self._stall = 0.0, None
            return None
        self._silent_s += gap
        if self._silent_s < self._after_s:
            return None
        if self._stall is None:
            self._stall = self._notice()
            self._looked_at = self._clock()
            self._signs = self._read_signs(self._rhythmic())  # the dump has grown the log
        return self._stall

    @property
    def silent_s(self) -> float:
        """How long nothing was seen."""
        return self._silent_s

    def _alive(self, gap_s: float) -> bool:
        rhythmic = self._rhythmic()
        before, self._signs = self._signs, self._read_signs(rhythmic)
        process = read_process(self._folder)
        strove = self._effort.since_last(process, gap_s) if not rhythmic and process is not None else False
        return self._signs != before or strove

    def _rhythmic(self) -> bool:
        status = read_status(self._folder)
        return status is not None and status.state == "running" and status.phase in _RHYTHMIC

    def _read_signs(self, rhythmic: bool) -> tuple[object, ...]:
        status = read_status(self._folder)
        phase = (status.state, status.phase) if status is not None else None
        log = None if rhythmic else _size(self._folder.log)
        return _size(self._journal), phase, log

    def _notice(self) -> Stall:
        status, process = read_status(self._folder), read_process(self._folder)
        why = f"No journal record for {self._silent_s:.0f} s."
        text = ""
        if process is not None and process.launch == self._launch and _is(process):
            try:
                text = stack_dumps.dump(self._folder, process.pid, why)
            except OSError as error:
                logger.warning("The stacks of job %s cannot be dumped: %s", self._folder.root.name, error)
        step, phase = (status.step, status.phase) if status is not None else (0, "loading")
        stall = Stall(self._silent_s, step, phase, stack_dumps.top_frames(text), text)
        logger.warning("job %s has come to a standstill. %s", self._folder.root.name, stall.sentence)
        return stall


class _Effort:
    """Processor time and bytes of a process and its descendants between two looks."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[float, int]] = {}

    def since_last(self, process: JobProcess, gap_s: float) -> bool:
        """Tell whether they worked since the last look."""
        now: dict[int, tuple[float, int]] = {}
        for each in _family(process):
            try:
                with each.oneshot():
                    now[each.pid] = (sum(each.cpu_times()[:2]), _bytes_moved(each))
            except psutil.Error:
                continue  # it has just ended
        before, self._before = self._before, now
        if not before:
            return True
        seconds = sum(cpu - before.get(pid, (cpu, 0))[0] for pid, (cpu, _) in now.items())
        moved = sum(count - before.get(pid, (0.0, count))[1] for pid, (_, count) in now.items())
        return seconds > _BUSY_SHARE * gap_s or moved > _BUSY_BYTES


def _family(process: JobProcess) -> list[psutil.Process]:
    try:
        trainer = psutil.Process(process.pid)
        return [trainer, *trainer.children(recursive=True)] if _is(process) else []
    except psutil.Error:
        return []


def _bytes_moved(process: psutil.Process) -> int:
    try:
        counters = process.io_counters()  # type: ignore[attr-defined, unused-ignore] # not on macOS
    except (AttributeError, psutil.Error):
        return 0
    return int(counters.read_bytes + counters.write_bytes)


def _is(process: JobProcess) -> bool:
    started_at = process_identity.process_started_at(process.pid)
    return started_at is not None and started_at == process.process_started_at


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
