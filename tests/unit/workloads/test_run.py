from __future__ import annotations

import errno
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunefleet.errors import DataError, MachineError, UnreachableError
from tunefleet.schemas.job_folder import JobFolder, JobStatus
from tunefleet.workloads import entrypoint


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path], None]], tuple[int, JobStatus]]:
    """Run a function as the program of a job; returns the exit code and the last status."""

    def go(program: Callable[[Path], None]) -> tuple[int, JobStatus]:
        module = types.ModuleType("a_program")
        module.main = program  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "a_program", module)
        folder = JobFolder(tmp_path / "job")
        folder.root.mkdir()
        job = {"job_id": "j", "task_id": "j", "attempt": 1, "launch": "l1", "kind": "sft", "name": "n", "spec": {}}
        folder.job_json.write_text(json.dumps({**job, "program": "a_program:main"}))
        code = entrypoint.main(folder.root)
        return code, JobStatus.model_validate_json(folder.status_json.read_bytes())

    return go


def test_a_proper_end_is_completed(start: Any, tmp_path: Path) -> None:
    code, status = start(lambda folder: (folder / "touched").touch())
    assert (code, status.state) == (0, "completed")
    assert (tmp_path / "job" / "touched").exists()
    records = [json.loads(line) for line in (tmp_path / "job" / "journal" / "l1.jsonl").read_text().splitlines()]
    assert [record["type"] for record in records] == ["launch", "event", "event"]


def test_a_mistake_of_the_user_is_one_sentence_and_no_traceback_in_the_log(
    start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def program(_: Path) -> None:
        raise DataError("rows.jsonl has no column 'answer'.", hint="It has: question.")

    code, status = start(program)
    assert code == 2
    assert (status.state, status.error_kind) == ("failed", "input")
    assert status.error == "rows.jsonl has no column 'answer'. It has: question."
    assert status.traceback is not None
    assert not any(record.exc_info for record in caplog.records)


def test_a_bug_keeps_its_traceback(start: Any) -> None:
    def program(_: Path) -> None:
        raise ZeroDivisionError("division by zero")

    code, status = start(program)
    assert (code, status.error_kind, status.error) == (1, "bug", "ZeroDivisionError: division by zero")
    assert "in program" in str(status.traceback)


def test_a_program_that_does_not_exist_is_a_bug(tmp_path: Path) -> None:
    job = {"job_id": "j", "task_id": "j", "attempt": 1, "launch": "l1", "kind": "sft", "name": "n", "spec": {}}
    (tmp_path / "job.json").write_text(json.dumps({**job, "program": "tunefleet.workloads.nothing:main"}))
    assert entrypoint.main(tmp_path) == 1


def test_an_abort_passes_through(start: Any, tmp_path: Path) -> None:
    from tunefleet import trainer_control

    def program(folder: Path) -> None:
        trainer_control.open_session(folder).status.write(state="aborted", intent="abort")
        raise SystemExit(0)

    with pytest.raises(SystemExit):
        start(program)
    status = json.loads((tmp_path / "job" / "status.json").read_text())
    assert (status["state"], status["error"]) == ("aborted", None)


class OutOfMemoryError(RuntimeError):
    """As torch names its own."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DataError("x"), "input"),
        (MachineError("x"), "input"),
        (UnreachableError("x"), "network"),
        (ConnectionResetError("x"), "network"),
        (TimeoutError("x"), "network"),
        (MemoryError(), "oom"),
        (OutOfMemoryError("x"), "oom"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "oom"),
        (RuntimeError("CUDA error: out of memory"), "oom"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "disk"),
        (OSError(errno.EACCES, "Permission denied"), "bug"),
        (ValueError("out of memory"), "bug"),
        (ModuleNotFoundError("No module named 'bitsandbytes'"), "machine"),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), "machine"),
        (RuntimeError("Found no NVIDIA driver on your system."), "machine"),
        (RuntimeError("CUDA error: device-side assert triggered"), "bug"),
    ],
)
def test_the_kind_of_a_failure_decides_whether_a_retry_makes_sense(error: Exception, kind: str, tmp_path: Path) -> None:
    assert entrypoint.kind_of(error, tmp_path) == kind


@pytest.mark.parametrize(("raised", "kind"), [(MachineError, "machine"), (DataError, "input")])
def test_a_missing_package_behind_an_error_of_the_machine_is_found(
    raised: type[Exception], kind: str, tmp_path: Path
) -> None:
    error = raised("vLLM cannot be imported.")
    error.__cause__ = ImportError("libcudart.so.12")
    assert entrypoint.kind_of(error, tmp_path) == kind


def test_a_full_disk_behind_another_error_is_found(tmp_path: Path) -> None:
    error = MachineError("The archive cannot be made.")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert entrypoint.kind_of(error, tmp_path) == "disk"


def test_a_sentence_is_one_line() -> None:
    assert entrypoint.message_of(RuntimeError("\nfirst\nsecond")) == "RuntimeError: first"
    assert entrypoint.message_of(KeyError()) == "KeyError"
