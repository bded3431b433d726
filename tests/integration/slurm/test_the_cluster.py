"""What the engine is to rest on, asked of a real Slurm: nodes, reasons, the signal before the end, and requeueing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.slurm.cluster import CORES, SlurmCluster

pytestmark = pytest.mark.proof


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 25
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def _lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def test_srun_starts_one_process_on_each_of_two_nodes(slurm: SlurmCluster) -> None:
    out = slurm.folder / "two"
    job = slurm.submit(f"#!/bin/sh\nsrun sh -c 'echo $SLURMD_NODENAME >> {out}'\n", "--nodes=2", "--ntasks-per-node=1")
    _until(lambda: slurm.state(job)[0] == "COMPLETED", "the job does not end")
    assert sorted(_lines(out)) == ["n1", "n2"]


def test_a_job_that_waits_for_room_says_so(slurm: SlurmCluster) -> None:
    options = ("--nodes=2", "--ntasks-per-node=1", f"--cpus-per-task={CORES}")
    first = slurm.submit("#!/bin/sh\nexec sleep 600\n", *options)
    _until(lambda: slurm.state(first)[0] == "RUNNING", "the first job does not run")
    second = slurm.submit("#!/bin/sh\ntrue\n", *options)
    _until(lambda: slurm.state(second) == ("PENDING", "Resources"), "the second job has no reason")
    slurm.call("scancel", first)
    _until(lambda: slurm.state(second)[0] == "COMPLETED", "the second job does not get the room")


def test_a_signalled_batch_script_that_requeues_itself_is_held_back_until_released(slurm: SlurmCluster) -> None:
    out = slurm.folder / "again"
    job = slurm.submit(
        "#!/bin/bash\n"
        f"echo ${{SLURM_RESTART_COUNT:-0}} >> {out}\n"
        '[ -n "$SLURM_RESTART_COUNT" ] && exit 0\n'
        "trap 'kill %1; scontrol requeue $SLURM_JOB_ID; exit 0' USR1\n"
        "sleep 600 & wait\n",
        "--requeue",
    )
    _until(lambda: _lines(out) == ["0"], "the job does not begin")
    slurm.call("scancel", "--signal=USR1", "--batch", job)
    _until(lambda: slurm.state(job) == ("PENDING", "BeginTime"), f"the job is not held back: {slurm.state(job)}")
    slurm.call("scontrol", "update", f"JobId={job}", "StartTime=now")
    _until(lambda: _lines(out) == ["0", "1"], f"the job does not begin again: {slurm.state(job)}")
    _until(lambda: slurm.state(job)[0] == "COMPLETED", "the second run does not end")
