"""Classifies the end of a launch from its status, its exit code and the tail of its log.

Only reads files; whether to retry is decided elsewhere, by the reason.
"""

from __future__ import annotations

import logging
import re
import shutil
import signal
from typing import Any, Final

from pydantic import ValidationError

from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import job_log
from tunefleet.schemas.base import Message
from tunefleet.schemas.job_folder import JobExit, JobFolder, JobProcess, JobStatus
from tunefleet.schemas.worker_link import FinishOutcome
from tunefleet.trainer_control.files import read_json
from tunefleet.trainer_control.journal.writer import JournalWriter

_TAIL_BYTES = 64 << 10
_END_CHARS = 4096
# With less free space than this, the disk counts as full.
_FULL_BYTES = 1 << 20
_TRACEBACK = "Traceback (most recent call last):"
_LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP}
_PATTERNS: Final[tuple[tuple[TaskReason, re.Pattern[str]], ...]] = (
    (
        TaskReason.OUT_OF_MEMORY,
        re.compile(
            r"OutOfMemoryError|out of memory|DefaultCPUAllocator: can't allocate|CUBLAS_STATUS_ALLOC_FAILED"
            r"|^MemoryError|std::bad_alloc|Cannot allocate memory",
            re.M | re.I,
        ),
    ),
    (TaskReason.DISK_FULL, re.compile(r"No space left on device|\[Errno 28\]|Disk quota exceeded|\[Errno 122\]")),
)
_KINDS: Final = {
    "input": TaskReason.BAD_INPUT,
    "oom": TaskReason.OUT_OF_MEMORY,
    "disk": TaskReason.DISK_FULL,
    "network": TaskReason.NETWORK,
    "diverged": TaskReason.DIVERGED,
    "bug": TaskReason.BUG,
}
_REGULAR_ENDS: Final[dict[str, tuple[FinishOutcome, TaskReason]]] = {
    "completed": ("completed", TaskReason.FINISHED),
    "stopped": ("completed", TaskReason.STOPPED_EARLY),
    "paused": ("paused", TaskReason.PAUSED),
    "aborted": ("cancelled", TaskReason.ABORTED),
}
_MESSAGES: Final = {
    TaskReason.OUT_OF_MEMORY: "Out of memory.",
    TaskReason.DISK_FULL: "The disk is full.",
}
logger = logging.getLogger(__name__)


class JobEnd(Message):
    """How a launch ended.

    Args:
        returncode: Exit code recorded by the job's parent process; None if it was not recorded.
    """

    outcome: FinishOutcome
    reason: TaskReason
    error: str | None = None
    detail: str | None = None
    launch: str
    returncode: int | None = None


def classify(folder: JobFolder, launch: str, current_boot: str | None) -> JobEnd:
    """Classify a launch whose processes are gone.

    Args:
        current_boot: Boot id of the machine, to detect a reboot.
    """
    process = read_process(folder)
    # The files of an earlier launch are removed when one starts; a launch that never started has none.
    status = read_status(folder) if process is not None and process.launch == launch else None
    exit_ = _read_exit(folder, launch)
    returncode = exit_.returncode if exit_ else None
    cancelled = (read_json(folder.cancel_json) or {}).get("launch") == launch
    state = status.state if status else None
    if state in _REGULAR_ENDS:
        outcome, reason = _REGULAR_ENDS[state]
        if status is not None and status.intent == "preempt" and state == "paused" and not cancelled:
            # Paused by SIGTERM, as sent by a cluster or a shutdown: not a requested pause, so the task is rescheduled.
            outcome, reason = "released", TaskReason.RELEASED
        if reason is TaskReason.ABORTED and cancelled:
            reason = TaskReason.CANCELLED_BY_USER
        return JobEnd(outcome=outcome, reason=reason, launch=launch, returncode=returncode)
    if cancelled:
        reason = TaskReason.CANCELLED_BY_USER
        return JobEnd(outcome="cancelled", reason=reason, launch=launch, returncode=returncode)
    if status is not None and state == "failed":
        reason = _KINDS[status.error_kind or "bug"]
        return _failed(launch, reason, status.error or _last_line(status.traceback), status.traceback, returncode)
    tail = log_tail(folder, process.log_offset if process else 0)
    reason, error = _without_status(returncode, tail, rebooted=_rebooted(process, current_boot))
    if reason in (TaskReason.BUG, TaskReason.KILLED) and _disk_is_full(folder):
        # On a full disk neither the traceback nor the status could be written.
        reason, error = TaskReason.DISK_FULL, _MESSAGES[TaskReason.DISK_FULL]
    return _failed(launch, reason, error, last_traceback(tail), returncode)


def read_status(folder: JobFolder) -> JobStatus | None:
    """Return `status.json`, or None if it is missing or unreadable."""
    data = read_json(folder.status_json)
    try:
        return JobStatus.model_validate(data) if data is not None else None
    except ValidationError:
        return None


def read_process(folder: JobFolder) -> JobProcess | None:
    """Return `process.json`, or None if it is missing or unreadable."""
    data = read_json(folder.process_json)
    try:
        return JobProcess.model_validate(data) if data is not None else None
    except ValidationError:
        return None


def log_tail(folder: JobFolder, since: int = 0) -> str:
    """Return the end of the log, without anything before the position `since`, where the launch started."""
    return job_log.tail(folder.log, since, _TAIL_BYTES).decode(errors="replace")


def last_traceback(text: str) -> str | None:
    """Return the last Python traceback of a text, including the line of its exception."""
    start = text.rfind(_TRACEBACK)
    if start < 0:
        return None
    lines = text[start:].splitlines()
    # Indented lines belong to the frames; the first other line is the exception.
    end = next((n for n, line in enumerate(lines[1:], 1) if line and not line.startswith(" ")), len(lines) - 1)
    return "\n".join(lines[: end + 1])


def _without_status(returncode: int | None, tail: str, *, rebooted: bool) -> tuple[TaskReason, str]:
    if returncode == -signal.SIGKILL:
        # The kernel's OOM killer leaves no other trace in the job folder.
        return TaskReason.KILLED, "The training process was killed (SIGKILL); the machine may have run out of memory."
    signs = _end_of_log(tail)
    known = next((reason for reason, pattern in _PATTERNS if pattern.search(signs)), None)
    if known is not None:
        return known, _MESSAGES[known]
    if returncode is None:
        cause = "the machine was rebooted" if rebooted else "it was killed together with its parent process"
        return TaskReason.KILLED, f"The training process ended without a status: {cause}."
    if returncode < 0:
        crashed = -returncode in _CRASHES
        what = "crashed" if crashed else "was terminated by a signal"
        return (
            TaskReason.CRASHED if crashed else TaskReason.KILLED
        ), f"The training process {what} ({_signal(returncode)})."
    if returncode == 0:
        return TaskReason.BUG, "The training process ended without a result."
    traceback = last_traceback(tail)
    return TaskReason.BUG, _last_line(traceback) or f"The training process ended with exit code {returncode}."


def _end_of_log(tail: str) -> str:
    """Return the part of the log about the end: from the first traceback of the last chain, if there is one."""
    start = tail.rfind(_TRACEBACK)
    if start < 0:
        return tail[-_END_CHARS:]
    while (before := tail[:start].rstrip()).endswith(_LINKS) and (first := before.rfind(_TRACEBACK)) >= 0:
        start = first
    return tail[start:]


def _disk_is_full(folder: JobFolder) -> bool:
    return shutil.disk_usage(folder.root).free < _FULL_BYTES


def _failed(launch: str, reason: TaskReason, error: str | None, detail: str | None, returncode: int | None) -> JobEnd:
    message = error or "Training failed without an error message."
    return JobEnd(outcome="failed", reason=reason, error=message, detail=detail, launch=launch, returncode=returncode)


def _rebooted(process: JobProcess | None, current_boot: str | None) -> bool:
    return process is not None and process.boot_id is not None and process.boot_id != current_boot


def _read_exit(folder: JobFolder, launch: str) -> JobExit | None:
    data: dict[str, Any] | None = read_json(folder.exit_json)
    if data is None or data.get("launch") != launch:
        return None
    return JobExit.model_validate(data)


def _last_line(traceback: str | None) -> str | None:
    return traceback.strip().splitlines()[-1] if traceback and traceback.strip() else None


def _signal(returncode: int) -> str:
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def add(folder: JobFolder, launch: str, name: str, message: str, *, phase: str | None = None) -> None:
    """Append an event, and the job's progress, to the journal of a launch whose processes are gone.

    A full disk is not an error here.

    Args:
        phase: New phase of the job; None keeps the current one.
    """
    if not (folder.journal_dir / f"{launch}.jsonl").exists():
        return  # the launch never reported anything
    status = read_status(folder)
    try:
        # A journal has one writer at a time: the trainer, and after its end the process that has seen it.
        writer = JournalWriter(folder.root, launch)
        writer.event(name, message, "warning")
        if phase is not None:
            step, max_steps = (status.step, status.max_steps) if status is not None else (0, 0)
            writer.progress(phase, step=step, max_steps=max_steps)
        writer.close()
    except OSError as error:
        logger.warning("Could not append the end of %s to its journal: %s", launch, error)
