"""Stack dumps of a job's processes, written into its log."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import psutil

from tunefleet.runtime import job_log, locks
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control import diagnostics

logger = logging.getLogger(__name__)

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


def dump(folder: JobFolder, trainer: int, why: str) -> str:
    """Dump the stacks of all processes of a job into its log.

    Returns:
        The dumps, and the kernel state of processes that could not dump; at most 256 KiB.
    """
    pids = _family(folder, trainer)
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


def top_frames(text: str) -> str:
    """Return the innermost frames of the first process's main thread in one line; empty if there are none."""
    blocks = re.split(r"^(?=(?:Current thread|Thread) 0x)", text, flags=re.MULTILINE)
    framed = [[match for line in block.splitlines() if (match := _FRAME.match(line))] for block in blocks]
    main = next((frames for frames in framed if frames and frames[-1]["name"] != _THREAD), None)
    frames = main or next((frames for frames in framed if frames), [])
    return " < ".join(f"{each['name']} ({each['file']}:{each['line']})" for each in frames[:_TOP_FRAMES])


def _family(folder: JobFolder, trainer: int) -> list[int]:
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
