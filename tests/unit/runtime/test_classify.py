"""How a launch ended: from what it left in its folder to a reason and a sentence."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime.exit_classification import JobEnd, classify, last_traceback
from tunefleet.schemas.job_folder import JobFolder

BOOT = "boot-1"
PROCESS = {
    "launch": "L",
    "pid": 7,
    "process_started_at": 1.0,
    "boot_id": BOOT,
    "started_at": 0.0,
    "log_offset": 0,
}
CHAIN = """Traceback (most recent call last):
  File "save.py", line 1, in save
    write()
OSError: [Errno 28] No space left on device

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "save.py", line 3, in save
    raise
RuntimeError: the archive could not be written
"""

End = Callable[..., JobEnd]


@pytest.fixture
def end(tmp_path: Path) -> End:
    folder = JobFolder(tmp_path)

    def put(path: Path, data: dict[str, Any] | None) -> None:
        if data is not None:
            path.write_text(json.dumps(data))

    def build(
        *,
        status: dict[str, Any] | None = None,
        code: int | None = None,
        log: str = "",
        cancelled: str | None = None,
        boot: str = BOOT,
        **process: Any,
    ) -> JobEnd:
        put(folder.process_json, {**PROCESS, **process})
        put(folder.status_json, {"at": 0.0, "pid": 7, **status} if status else None)
        put(folder.exit_json, None if code is None else {"launch": "L", "pid": 7, "returncode": code, "at": 0.0})
        put(folder.cancel_json, {"launch": cancelled} if cancelled else None)
        folder.log.write_text(log)
        return classify(folder, "L", boot)

    return build


@pytest.mark.parametrize(
    ("state", "outcome", "reason"),
    [
        ("completed", "completed", TaskReason.FINISHED),
        ("stopped", "completed", TaskReason.STOPPED_EARLY),
        ("aborted", "cancelled", TaskReason.ABORTED),
        ("paused", "paused", TaskReason.PAUSED),
    ],
)
@pytest.mark.parametrize("code", [0, -signal.SIGSEGV, None])
def test_a_deliberate_end_counts_whatever_the_process_did_after_it(
    end: End, state: str, outcome: str, reason: TaskReason, code: int | None
) -> None:
    found = end(status={"state": state}, code=code)
    assert (found.outcome, found.reason, found.returncode) == (outcome, reason, code)


@pytest.mark.parametrize("status", [{"state": "aborted"}, {"state": "running"}, {"state": "failed"}, None])
def test_an_end_that_was_asked_for_is_no_failure(end: End, status: dict[str, Any] | None) -> None:
    found = end(status=status, code=-signal.SIGTERM, cancelled="L")
    assert (found.outcome, found.reason) == ("cancelled", TaskReason.CANCELLED_BY_USER)


def test_a_cancel_that_came_too_late_takes_nothing_back(end: End) -> None:
    assert end(status={"state": "completed"}, code=0, cancelled="L").outcome == "completed"


def test_a_cancel_of_an_earlier_launch_is_not_ours(end: End) -> None:
    assert end(status={"state": "running"}, code=-signal.SIGKILL, cancelled="K").reason is TaskReason.KILLED


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("input", TaskReason.BAD_INPUT),
        ("oom", TaskReason.OUT_OF_MEMORY),
        ("disk", TaskReason.DISK_FULL),
        ("network", TaskReason.NETWORK),
        ("bug", TaskReason.BUG),
        (None, TaskReason.BUG),
    ],
)
def test_a_failure_that_the_program_announced(end: End, kind: str | None, reason: TaskReason) -> None:
    found = end(status={"state": "failed", "error_kind": kind, "error": "No.", "traceback": "T"}, code=1)
    assert (found.outcome, found.reason, found.error, found.detail) == ("failed", reason, "No.", "T")


@pytest.mark.parametrize(
    ("code", "log", "reason"),
    [
        (-signal.SIGKILL, "", TaskReason.KILLED),
        (-signal.SIGTERM, "", TaskReason.KILLED),
        (-signal.SIGSEGV, "", TaskReason.CRASHED),
        (-signal.SIGBUS, "", TaskReason.CRASHED),
        (-signal.SIGABRT, "terminate called after throwing 'std::bad_alloc'\n", TaskReason.OUT_OF_MEMORY),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n", TaskReason.OUT_OF_MEMORY),
        (1, "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory\n", TaskReason.OUT_OF_MEMORY),
        (1, "OSError: [Errno 28] No space left on device\n", TaskReason.DISK_FULL),
        (1, CHAIN, TaskReason.DISK_FULL),
        (1, "Traceback (most recent call last):\nModuleNotFoundError: No module named 'x'\n", TaskReason.MACHINE_ERROR),
        (1, "RuntimeError: CUDA error: device-side assert triggered\n", TaskReason.BUG),
        (3, "", TaskReason.BUG),
        (0, "", TaskReason.BUG),
        (None, "", TaskReason.KILLED),
    ],
)
def test_an_end_without_a_word(end: End, code: int | None, log: str, reason: TaskReason) -> None:
    found = end(status={"state": "running"}, code=code, log=log)
    assert (found.outcome, found.reason) == ("failed", reason)
    assert found.error is not None
    assert found.error.endswith((".", "written", "'x'"))


def test_a_bug_is_told_by_its_last_traceback(end: End) -> None:
    log = "CUDA out of memory, trying a smaller batch\n" + "x\n" * 20
    log += "Traceback (most recent call last):\n  File 'a'\nKeyError: 'first'\n"
    log += "Traceback (most recent call last):\n  File 'b', line 2\n    c()\nValueError: second\nbye\n"
    found = end(status={"state": "running"}, code=1, log=log)
    assert (found.reason, found.error) == (TaskReason.BUG, "ValueError: second")
    assert found.detail == "Traceback (most recent call last):\n  File 'b', line 2\n    c()\nValueError: second"


def test_what_an_earlier_launch_logged_is_not_this_ones_end(end: End) -> None:
    before = "torch.OutOfMemoryError: CUDA out of memory\n"
    found = end(code=1, log=before + "nothing\n", log_offset=len(before))
    assert found.reason is TaskReason.BUG


def test_a_restart_of_the_machine_is_named(end: End) -> None:
    assert "rebooted" in str(end(boot="boot-2").error)
    assert "parent process" in str(end().error)


def test_a_status_of_an_earlier_launch_is_not_read(end: End) -> None:
    found = end(status={"state": "completed"}, launch="K")
    assert (found.outcome, found.reason) == ("failed", TaskReason.KILLED)


def test_a_full_disk_explains_an_end_that_nobody_could_write_down(end: End, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(4096))
    assert end(status={"state": "running"}, code=1).reason is TaskReason.DISK_FULL
    assert end(status={"state": "running"}, code=-signal.SIGSEGV).reason is TaskReason.CRASHED


@pytest.mark.parametrize("content", ["", "{", "[]", '{"state": "dancing", "at": 0, "pid": 1}'])
def test_a_status_that_cannot_be_read_is_none(end: End, tmp_path: Path, content: str) -> None:
    end(code=1)
    (tmp_path / "status.json").write_text(content)
    assert classify(JobFolder(tmp_path), "L", BOOT).reason is TaskReason.BUG


def test_a_text_without_a_traceback_has_none() -> None:
    assert last_traceback("all is well") is None
