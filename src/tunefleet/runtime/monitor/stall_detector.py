"""Detects that a running job has stalled, and dumps the stacks of its processes into its log.

Progress is a new journal record (one per second during training or evaluation steps) or a change of phase. Outside of
steps (loading, tokenizing, a long save, the work after the last step), log output, I/O and CPU time count, too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil

from tunefleet.runtime import job_log, locks
from tunefleet.runtime.exit_classification import read_process, read_status
from tunefleet.schemas.job_folder import Job, JobFolder, JobProcess
from tunefleet.trainer_control import diagnostics, process_identity

_WAIT_S: Final = 2.0
_LOOK_S: Final = 0.05
_MAX_BYTES: Final = 256 << 10
_TOP_FRAMES: Final = 5
_FRAME: Final = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)$')
# The outermost frame of every thread but the main one.
_THREAD: Final = "_bootstrap"
_STATES: Final = {
    psutil.STATUS_STOPPED: "is stopped (SIGSTOP)",
    psutil.STATUS_DISK_SLEEP: "is in uninterruptible sleep, waiting for the disk or the driver",
    psutil.STATUS_ZOMBIE: "is a zombie",
}
logger = logging.getLogger(__name__)
# A longer gap between two checks means that the monitor itself was suspended.
_MAX_CHECK_GAP_S: Final = 5.0
# Phases with regular journal records. CPU time does not count as progress in them: ranks that wait for each other in a
# collective spin at full load forever.
_RHYTHMIC: Final = frozenset({"training", "evaluating"})
_BUSY_SHARE: Final = 0.05
_BUSY_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Stall:
    """A current stall."""

    for_s: float
    step: int
    phase: str
    where: str
    detail: str

    @property
    def sentence(self) -> str:
        """Message for the user."""
        where = f" Stack: {self.where}." if self.where else ""
        note = next((line for line in self.detail.splitlines() if line.startswith("process ")), None)
        state = f" Its {note}." if note else ""
        return f"No journal record for {self.for_s:.0f} s, since step {self.step} ({self.phase}).{state}{where}"


class StallDetector:
    """Monitors one launch of a job; starts over when the job is adopted.

    Args:
        after_s: Seconds without progress that count as a stall.
        clock: Monotonic seconds, without time in which the machine is suspended.
    """

    def __init__(
        self, folder: JobFolder, job: Job, after_s: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = folder
        self._journal = folder.journal_dir / f"{job.launch}.jsonl"
        self._launch = job.launch
        self._after_s = after_s
        self._clock = clock
        self._checked_at = clock()
        self._silent_s = 0.0
        self._signs: tuple[object, ...] = ()
        self._activity = _Activity()
        self._stall: Stall | None = None

    def look(self) -> Stall | None:
        """Return the stall, if there is one; stacks are dumped into the log once, when it is detected.

        Cheap enough to be called every second; the call that detects a stall waits up to two seconds for the stacks.
        """
        now = self._clock()
        gap, self._checked_at = min(now - self._checked_at, _MAX_CHECK_GAP_S), now
        if self._alive(gap):
            if self._stall is not None:
                logger.info("job(%s) continues after %.0f s", self._folder.root.name, self._silent_s)
            self._silent_s, self._stall = 0.0, None
            return None
        self._silent_s += gap
        if self._silent_s < self._after_s:
            return None
        if self._stall is None:
            self._stall = self._detect()
            self._checked_at = self._clock()
            self._signs = self._read_signs(self._rhythmic())  # the dump itself has changed the log
        return self._stall

    @property
    def silent_s(self) -> float:
        """Seconds without progress."""
        return self._silent_s

    def _alive(self, gap_s: float) -> bool:
        rhythmic = self._rhythmic()
        before, self._signs = self._signs, self._read_signs(rhythmic)
        process = read_process(self._folder)
        worked = self._activity.since_last(process, gap_s) if not rhythmic and process is not None else False
        return self._signs != before or worked

    def _rhythmic(self) -> bool:
        status = read_status(self._folder)
        return status is not None and status.state == "running" and status.phase in _RHYTHMIC

    def _read_signs(self, rhythmic: bool) -> tuple[object, ...]:
        status = read_status(self._folder)
        phase = (status.state, status.phase) if status is not None else None
        log = None if rhythmic else _size(self._folder.log)
        return _size(self._journal), phase, log

    def _detect(self) -> Stall:
        status, process = read_status(self._folder), read_process(self._folder)
        why = f"No journal record for {self._silent_s:.0f} s."
        text = ""
        if process is not None and process.launch == self._launch and _is(process):
            try:
                text = _dump_stacks(self._folder, process.pid, why)
            except OSError as error:
                logger.warning("Could not dump the stacks of job(%s): %s", self._folder.root.name, error)
        step, phase = (status.step, status.phase) if status is not None else (0, "loading")
        stall = Stall(self._silent_s, step, phase, _top_frames(text), text)
        logger.warning("job(%s) has stalled. %s", self._folder.root.name, stall.sentence)
        return stall


class _Activity:
    """CPU time and I/O bytes of a process and its descendants between two checks."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[float, int]] = {}

    def since_last(self, process: JobProcess, gap_s: float) -> bool:
        """Return whether they were active since the last check."""
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


def _dump_stacks(folder: JobFolder, trainer: int, why: str) -> str:
    """Dump the stacks of all processes of a job into its log."""
    pids = _pids_of(folder, trainer)
    asked = [pid for pid in pids if diagnostics.listens(pid)]
    notes = [f"process {pid} {state}" for pid in pids if (state := _state(pid))]
    states = f"; {'; '.join(notes)}" if notes else ""
    targets = ", ".join(map(str, asked)) or "no process: none of the job supports it"
    at = datetime.now(UTC).isoformat(timespec="seconds")
    begin = _append(folder, f"\n=== {at} {why} Stacks of {targets}{states} ===\n")
    for pid in asked:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, diagnostics.SIGNAL)
    awake = [pid for pid in asked if not _state(pid)]
    return "\n".join([*notes, _await_growth(folder, begin, many=len(awake))])


def _top_frames(text: str) -> str:
    """Return the innermost frames of the first process's main thread in one line; empty if there are none."""
    blocks = re.split(r"^(?=(?:Current thread|Thread) 0x)", text, flags=re.MULTILINE)
    framed = [[match for line in block.splitlines() if (match := _FRAME.match(line))] for block in blocks]
    main = next((frames for frames in framed if frames and frames[-1]["name"] != _THREAD), None)
    frames = main or next((frames for frames in framed if frames), [])
    return " < ".join(f"{each['name']} ({each['file']}:{each['line']})" for each in frames[:_TOP_FRAMES])


def _pids_of(folder: JobFolder, trainer: int) -> list[int]:
    """Return the trainer, its descendants, and other holders of the job's lock; the trainer first."""
    pids = [trainer]
    with contextlib.suppress(psutil.Error):
        pids += [child.pid for child in psutil.Process(trainer).children(recursive=True)]
    return list(dict.fromkeys([*pids, *locks.holders(folder.lock)]))


def _state(pid: int) -> str | None:
    try:
        return _STATES.get(psutil.Process(pid).status())
    except psutil.Error:
        return None


def _append(folder: JobFolder, text: str) -> int:
    with folder.log.open("ab") as log:
        log.write(text.encode())
    return job_log.end(folder.log)


def _await_growth(folder: JobFolder, begin: int, *, many: int) -> str:
    """Return the log from an offset on, once `many` dumps are complete and it no longer grows, or after a timeout."""
    deadline = time.monotonic() + (_WAIT_S if many else 0.0)
    text = _read(folder, begin)
    while time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        before, text = text, _read(folder, begin)
        if text and text == before and text.count("most recent call first") >= many:
            break
    return text


def _read(folder: JobFolder, begin: int) -> str:
    return job_log.read(folder.log, begin, _MAX_BYTES)[1].decode(errors="replace")


def names(pids: Iterable[int]) -> str:
    """Return processes as text: `python (pid 4242, of anna)`; ended ones are omitted."""
    return ", ".join(filter(None, map(_name, pids)))


def _name(pid: int) -> str | None:
    try:
        process = psutil.Process(pid)
        user = process.username()
        own = user == psutil.Process().username()
        return f"{process.name()} (pid {pid}{'' if own else f', of {user}'})"
    except psutil.Error:
        return None
