"""Whoever is killed, the job goes on or ends properly, and the next supervisor knows how it stands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.runtime.conftest import Launch, environment, kill, make_job, process_of, training, until
from tunefleet.errors import MachineError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import Supervisor, locks
from tunefleet.runtime.gpu import gpu_locks as gpus

LAUNCHER = """
import json, sys, time
from pathlib import Path
from tunefleet.runtime import Supervisor
from tunefleet.schemas.job_folder import Job
results, endpoints, env, job = sys.argv[1:]
supervisor = Supervisor(results, endpoints_dir=endpoints, warm=False, base_env=json.loads(env))
supervisor.launch(Job.model_validate_json(job))
print("launched", flush=True)
time.sleep(60)
"""


def test_a_killed_supervisor_leaves_the_job_and_the_next_one_adopts_it(supervisor: Supervisor, tmp_path: Path) -> None:
    arguments = [str(supervisor.results_dir), str(supervisor.endpoints_dir), json.dumps(environment(tmp_path))]
    job = make_job("train", steps=60)
    command = [sys.executable, "-c", LAUNCHER, *arguments, job.model_dump_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "launched\n"
        other.kill()
    (handle,) = supervisor.adopt()
    assert handle.alive
    assert handle.poll() is None
    assert handle.job.launch == job.launch
    until(lambda: training(handle))
    end = handle.wait(15)
    assert end is not None
    assert (end.outcome, end.returncode) == ("completed", 0)


def test_an_end_is_adopted_until_it_is_acknowledged(launch: Launch, supervisor: Supervisor) -> None:
    assert launch("finish").wait(20) is not None
    (handle,) = supervisor.adopt()
    handle.acknowledge()  # nothing was read yet
    assert len(supervisor.adopt()) == 1
    assert handle.poll() is not None
    handle.acknowledge()
    assert supervisor.adopt() == []


def test_a_cancel_is_remembered_by_whoever_adopts(launch: Launch, supervisor: Supervisor) -> None:
    handle = launch("train")
    until(lambda: training(handle))
    handle.cancel(10)
    (adopted,) = supervisor.adopt()
    end = adopted.wait(10)
    assert end is not None
    assert end.reason is TaskReason.CANCELLED_BY_USER


def test_a_killed_trainer_is_known_and_its_endpoint_goes(launch: Launch, supervisor: Supervisor) -> None:
    handle = launch("train")
    until(lambda: training(handle))
    kill(process_of(handle).pid)
    end = handle.wait(10)
    assert end is not None
    assert (end.reason, end.returncode) == (TaskReason.KILLED, -9)
    assert (supervisor.endpoints_dir / "task-1" / "endpoint.json").exists()
    handle.acknowledge()
    assert not (supervisor.endpoints_dir / "task-1").exists()


def test_a_killed_keeper_does_not_end_the_trainer(launch: Launch, supervisor: Supervisor) -> None:
    handle = launch("train", steps=60)
    until(lambda: training(handle))
    kill(process_of(handle).keeper_pid)
    assert handle.poll() is None
    (adopted,) = supervisor.adopt()
    end = adopted.wait(15)
    assert end is not None
    assert (end.outcome, end.returncode) == ("completed", None)


def test_a_trainer_without_a_keeper_can_still_be_cancelled(launch: Launch) -> None:
    handle = launch("train")
    until(lambda: training(handle))
    kill(process_of(handle).keeper_pid)
    handle.cancel(10)
    end = handle.wait(10)
    assert end is not None
    assert end.outcome == "cancelled"


def test_a_trainer_killed_with_its_keeper_was_killed(launch: Launch) -> None:
    handle = launch("train")
    until(lambda: training(handle))
    process = process_of(handle)
    kill(process.keeper_pid)
    kill(process.pid)
    end = handle.wait(10)
    assert end is not None
    assert (end.reason, end.returncode) == (TaskReason.KILLED, None)
    assert "parent process" in str(end.error)


@pytest.mark.parametrize("new_session", [False, True])
def test_what_outlives_trainer_and_keeper_is_ended(launch: Launch, new_session: bool) -> None:
    handle = launch("beget", new_session=new_session)
    until(lambda: training(handle))
    process = process_of(handle)
    (child,) = set(locks.holders(handle.folder.lock)) - {process.pid, process.keeper_pid}
    assert child == int((handle.folder.root / "child.pid").read_text())
    kill(process.keeper_pid)
    kill(process.pid)
    end = handle.wait(10)
    assert end is not None
    assert end.reason is TaskReason.KILLED
    until(lambda: not handle.alive)


def test_folders_that_are_no_jobs_are_left_alone(supervisor: Supervisor, caplog: pytest.LogCaptureFixture) -> None:
    for name, content in (("torn", "{"), ("odd", '{"job_id": "x"}'), (".worker", None)):
        folder = supervisor.results_dir / name
        folder.mkdir(parents=True)
        if content:
            (folder / "job.json").write_text(content)
    (supervisor.results_dir / "never").mkdir()
    job = make_job("finish", job_id="never")
    (supervisor.results_dir / "never" / "job.json").write_text(job.model_dump_json())
    assert supervisor.adopt() == []
    assert sum("Not adopting" in record.message for record in caplog.records) == 2


def test_two_jobs_do_not_share_a_gpu(launch: Launch, supervisor: Supervisor) -> None:
    handle = launch("train", gpus=("GPU-a",))
    ledger = gpus.ledger_dir(supervisor.endpoints_dir)
    assert "task-1" in str(gpus.holder(ledger, "GPU-a"))
    with pytest.raises(MachineError, match="GPU GPU-a is in use by job task-1"):
        launch("train", gpus=("GPU-b", "GPU-a"), job_id="task-2")
    assert gpus.holder(ledger, "GPU-b") is None
    handle.cancel(5)
    handle.wait(10)
    until(lambda: gpus.holder(ledger, "GPU-a") is None)
    # A process that was just being started may have inherited the lock of the launch that was refused.
    until(lambda: not locks.is_held(supervisor.folder("task-2").lock))
    assert launch("finish", gpus=("GPU-a",), job_id="task-2").wait(20) is not None


def test_after_a_reboot_nothing_is_taken_for_the_trainer(launch: Launch, supervisor: Supervisor) -> None:
    """As after a reboot: the files name another boot, and the trainer's number belongs to somebody else."""
    handle = launch("train")
    until(lambda: training(handle))
    process = process_of(handle)
    kill(process.keeper_pid)
    kill(process.pid)
    until(lambda: not handle.alive)
    before = process.model_copy(update={"boot_id": "the boot before", "pid": os.getpid()})
    handle.folder.process_json.write_text(before.model_dump_json())
    (found,) = supervisor.adopt()
    assert not found.signal_group(signal.SIGTERM), "the number is this test's own"
    found.kill()
    end = found.poll()
    assert end is not None
    assert (end.outcome, end.reason) == ("failed", TaskReason.KILLED)
    assert "the machine was rebooted" in str(end.error)
    again = supervisor.launch(make_job("finish"))
    assert (end := again.wait(20)) is not None
    assert end.outcome == "completed"
