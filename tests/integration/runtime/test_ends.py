"""Real processes and their ends: what the handle says, and what is left."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.runtime.conftest import Launch, environment, make_job, process_of, training, until
from tunefleet.errors import ConflictError, InputError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import Supervisor, job_log
from tunefleet.schemas.journal import ANY_RECORD

pytestmark = pytest.mark.proof


def test_a_job_runs_to_its_end_and_leaves_everything_to_read(launch: Launch) -> None:
    handle = launch("finish", say="hello from the trainer")
    end = handle.wait(20)
    assert end is not None
    assert (end.outcome, end.reason, end.error, end.returncode) == ("completed", TaskReason.FINISHED, None, 0)
    assert "hello from the trainer" in handle.folder.log.read_text()
    journal = (handle.folder.journal_dir / f"{handle.job.launch}.jsonl").read_text().splitlines()
    records = [ANY_RECORD.validate_json(line) for line in journal]
    assert [record.seq for record in records] == list(range(len(records)))
    assert [record.step for record in records if record.type == "metric"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("do", "options", "reason", "error"),
    [
        ("fail", {"error": "input"}, TaskReason.BAD_INPUT, "The dataset has no rows."),
        ("fail", {"error": "memory"}, TaskReason.OUT_OF_MEMORY, "no memory for a tensor"),
        ("fail", {"error": "disk"}, TaskReason.DISK_FULL, "disk is full"),
        ("fail", {"error": "network"}, TaskReason.NETWORK, "The Hub does not respond."),
        ("fail", {"error": "bug"}, TaskReason.BUG, "ZeroDivisionError: division by zero"),
        ("die", {"number": int(signal.SIGKILL)}, TaskReason.KILLED, "SIGKILL"),
        ("die", {"number": int(signal.SIGSEGV)}, TaskReason.CRASHED, "SIGSEGV"),
        ("leave", {"code": 1, "say": "CUDA error: out of memory\n"}, TaskReason.OUT_OF_MEMORY, "Out of memory"),
        ("leave", {"code": 4}, TaskReason.BUG, "exit code 4"),
        ("leave", {"code": 0}, TaskReason.BUG, "without a result"),
    ],
)
def test_a_failure_has_its_reason(
    launch: Launch, do: str, options: dict[str, Any], reason: TaskReason, error: str
) -> None:
    end = launch(do, **options).wait(20)
    assert end is not None
    assert (end.outcome, end.reason) == ("failed", reason)
    assert error in str(end.error)
    assert (end.detail is not None) == (do == "fail")


def test_a_process_gets_what_it_needs_and_nothing_else(launch: Launch, supervisor: Supervisor) -> None:
    handle = launch("look")
    assert handle.wait(20) is not None
    facts = json.loads((handle.folder.root / "facts.json").read_text())
    process = process_of(handle)
    assert (facts["pid"], facts["pgid"], facts["ppid"]) == (process.pid, process.pid, process.keeper_pid)
    assert facts["sid"] == process.keeper_pid
    assert (facts["cwd"], facts["stdin"]) == (str(handle.folder.root), "/dev/null")
    assert facts["stdout"] == str(handle.folder.log)
    assert not process.warm
    assert not [name for name in facts["environ"] if name.endswith(("_KEY", "_TOKEN"))]


def test_what_a_trainer_leaves_in_its_group_ends_with_it(launch: Launch) -> None:
    handle = launch("beget")
    until(lambda: training(handle))
    handle.command("graceful_stop")
    end = handle.wait(10)
    assert end is not None
    assert end.reason is TaskReason.STOPPED_EARLY
    child = Path(f"/proc/{(handle.folder.root / 'child.pid').read_text()}")
    until(lambda: not child.exists() or b"Z" in (child / "stat").read_bytes().split()[2])


def test_what_has_left_the_group_does_not_keep_the_job_from_its_next_launch(launch: Launch) -> None:
    handle = launch("beget", new_session=True)
    until(lambda: training(handle))
    handle.command("graceful_stop")
    assert handle.wait(10) is not None
    assert launch("finish").wait(20) is not None


def test_a_job_that_lives_is_not_started_twice(launch: Launch, supervisor: Supervisor) -> None:
    handle = launch("train")
    with pytest.raises(ConflictError, match="is already running"):
        launch("train")
    handle.cancel(5)
    assert handle.wait(10) is not None
    assert launch("finish").wait(20) is not None


@pytest.mark.parametrize("job_id", ["../x", "a/b", ""])
def test_a_name_that_leaves_the_folder_is_refused(supervisor: Supervisor, job_id: str) -> None:
    with pytest.raises(InputError):
        supervisor.launch(make_job("finish", job_id=job_id))


def test_a_job_that_prints_without_end_stays_within_its_limit_whoever_looks_after_it(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    """The worker may be gone: the job's keeper cuts the log."""
    other = Supervisor(
        supervisor.results_dir, endpoints_dir=tmp_path / "home" / "jobs", warm=False,
        base_env=environment(tmp_path), log_bytes=job_log.SMALLEST_LIMIT_BYTES,
    )  # fmt: skip
    handle = other.launch(make_job("flood", mebibytes=100))
    other.close()
    end = handle.wait(60)
    assert end is not None
    assert end.outcome == "completed"
    log = handle.folder.log
    sizes = [log.stat().st_size, log.with_name("train.log.1").stat().st_size]
    assert sum(sizes) < 70 << 20, "the limit of 32 MiB, and what is printed between two looks"
    text = log.read_text()
    assert "00000000" in text[:1000]
    assert b"00000099" in job_log.tail(log, 0, 2 << 20)
    assert text.count("are dropped here") == 1


def test_each_attempt_has_its_own_log_and_its_launches_share_it(launch: Launch) -> None:
    first = launch("finish", say="one")
    first.wait(20)
    second = launch("finish", say="two")
    second.wait(20)
    size = second.folder.log.stat().st_size
    third = launch("finish", say="three", attempt=2)
    third.wait(20)
    assert (first.job.log_base, second.job.log_base, third.job.log_base) == (0, 0, size)
    assert b"three" in third.folder.log.read_bytes()[size:]


def test_the_log_of_work_that_is_done_goes_on_where_a_lost_attempt_had_brought_it(launch: Launch) -> None:
    """Its worker was given up for lost; the next attempt finds the result there, and delivers what is missing."""
    first = launch("finish", say="one")
    first.wait(20)
    first.folder.responses_json.write_text("{}")
    first.folder.shipped_json.write_text(json.dumps({"log_base": 2, "log_offset": 3, "attempt": 1}))
    second = launch("finish", say="two", attempt=2)
    second.wait(20)
    assert second.job.log_base == 5
