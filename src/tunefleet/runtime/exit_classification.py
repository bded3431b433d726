"""How a launch ended: from its status, its exit code and the tail of its log, to a reason and a sentence.

Pure but for reading; decides nothing about a retry, that is the reason's business.
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
_LAST_WORDS = 4096
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
_DELIBERATE: Final[dict[str, tuple[FinishOutcome, TaskReason]]] = {
    "completed": ("completed", TaskReason.FINISHED),
    "stopped": ("completed", TaskReason.STOPPED_EARLY),
    "paused": ("paused", TaskReason.PAUSED),
    "aborted": ("cancelled", TaskReason.ABORTED),
}
_SENTENCES: Final = {
    TaskReason.OUT_OF_MEMORY: "The training ran out of memory.",
    TaskReason.DISK_FULL: "The disk is full.",
}


class JobEnd(Message):
    """How a launch ended.

    Args:
        returncode: As the keeper saw it; null if nobody did.
    """

    outcome: FinishOutcome
    reason: TaskReason
    error: str | None = None
    detail: str | None = None
    launch: str
    returncode: int | None = None


def classify(folder: JobFolder, launch: str, current_boot: str | None) -> JobEnd:
    """Say how a launch ended whose processes are gone."""
    process = read_process(folder)
    # What an earlier launch left is removed when one begins; one that never began left nothing.
    status = read_status(folder) if process is not None and process.launch == launch else None
    exit_ = _read_exit(folder, launch)
    returncode = exit_.returncode if exit_ else None
    cancelled = (read_json(folder.cancel_json) or {}).get("launch") == launch
    state = status.state if status else None
    if state in _DELIBERATE:
        outcome, reason = _DELIBERATE[state]
        if status is not None and status.intent == "preempt" and state == "paused" and not cancelled:
            # By SIGTERM, which nobody sends who wants it to stay paused: the task goes on where there is room.
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
    reason, error = _unannounced(returncode, tail, rebooted=_rebooted(process, current_boot))
    if reason in (TaskReason.BUG, TaskReason.KILLED) and _disk_is_full(folder):
        # Then neither the traceback nor the status could be written.
        reason, error = TaskReason.DISK_FULL, _SENTENCES[TaskReason.DISK_FULL]
    return _failed(launch, reason, error, last_traceback(tail), returncode)


def read_status(folder: JobFolder) -> JobStatus | None:
    """Return what `status.json` says, or None if there is none that can be read."""
    data = read_json(folder.status_json)
    try:
        return JobStatus.model_validate(data) if data is not None else None
    except ValidationError:
        return None


def read_process(folder: JobFolder) -> JobProcess | None:
    """Return what `process.json` says, or None if there is none that can be read."""
    data = read_json(folder.process_json)
    try:
        return JobProcess.model_validate(data) if data is not None else None
    except ValidationError:
        return None


def log_tail(folder: JobFolder, since: int = 0) -> str:
    """Return the end of the log, but nothing from before a launch began, which was at the position `since`."""
    return job_log.tail(folder.log, since, _TAIL_BYTES).decode(errors="replace")


def last_traceback(text: str) -> str | None:
    """Return the last Python traceback of a text, with its exception's line."""
    start = text.rfind(_TRACEBACK)
    if start < 0:
        return None
    lines = text[start:].splitlines()
    # Indented lines belong to the frames; the first that is not, is the exception.
    end = next((n for n, line in enumerate(lines[1:], 1) if line and not line.startswith(" ")), len(lines) - 1)
    return "\n".join(lines[: end + 1])


def _unannounced(returncode: int | None, tail: str, *, rebooted: bool) -> tuple[TaskReason, str]:
    if returncode == -signal.SIGKILL:
        return TaskReason.KILLED, "The training process was killed (SIGKILL); the machine may have run out of memory."
    signs = _last_words(tail)
    known = next((reason for reason, pattern in _PATTERNS if pattern.search(signs)), None)
    if known is not None:
        return known, _SENTENCES[known]
    if returncode is None:
        cause = "the machine was restarted" if rebooted else "it was killed together with its keeper"
        return TaskReason.KILLED, f"The training process is gone without a word: {cause}."
    if returncode < 0:
        crashed = -returncode in _CRASHES
        what = "crashed" if crashed else "was ended from outside"
        return (
            TaskReason.CRASHED if crashed else TaskReason.KILLED
        ), f"The training process {what} ({_signal(returncode)})."
    if returncode == 0:
        return TaskReason.BUG, "The training process ended without a result."
    traceback = last_traceback(tail)
    return TaskReason.BUG, _last_line(traceback) or f"The training process ended with exit code {returncode}."


def _last_words(tail: str) -> str:
    """Return the part of the log that speaks of the end: from the first of the last chain of tracebacks, if any."""
    start = tail.rfind(_TRACEBACK)
    if start < 0:
        return tail[-_LAST_WORDS:]
    while (before := tail[:start].rstrip()).endswith(_LINKS) and (first := before.rfind(_TRACEBACK)) >= 0:
        start = first
    return tail[start:]


def _disk_is_full(folder: JobFolder) -> bool:
    return shutil.disk_usage(folder.root).free < _FULL_BYTES


def _failed(launch: str, reason: TaskReason, error: str | None, detail: str | None, returncode: int | None) -> JobEnd:
    sentence = error or "The training failed and did not say why."
    return JobEnd(outcome="failed", reason=reason, error=sentence, detail=detail, launch=launch, returncode=returncode)


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


logger = logging.getLogger(__name__)


def add(folder: JobFolder, launch: str, name: str, message: str, *, phase: str | None = None) -> None:
    """Append an event, and where the job stands, to the journal of a launch whose processes are gone.

    A journal has one writer: the trainer, and when it is gone, whoever saw its end. A full disk is no error here.

    Args:
        phase: What the job does from now on; None leaves that as it is.
    """
    if not (folder.journal_dir / f"{launch}.jsonl").exists():
        return  # it never came to reporting: no first record, no series
    status = read_status(folder)
    try:
        writer = JournalWriter(folder.root, launch)
        writer.event(name, message, "warning")
        if phase is not None:
            step, max_steps = (status.step, status.max_steps) if status is not None else (0, 0)
            writer.progress(phase, step=step, max_steps=max_steps)
        writer.close()
    except OSError as error:
        logger.warning("What became of %s cannot be added to its journal: %s", launch, error)
