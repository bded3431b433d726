"""The public callback in somebody's own script under torchrun, steered from outside over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.ranks.conftest import PROGRAM_DIR, until
from tunefleet.attach.checkpoints import fault_of, list_whole
from tunefleet.jobs.control import ControlClient, find_endpoint

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]

LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def start(folder: Path, jobs: Path, repository: Path, *more: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ, "TUNEFLEET_JOBS_DIR": str(jobs), "PYTHONPATH": str(repository), "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    command = [*LAUNCHER, str(PROGRAM_DIR / "own_script.py"), str(folder), *more]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_two_ranks_pause_at_one_step_and_go_on_to_the_same_weights(tmp_path: Path, repository: Path) -> None:
    jobs = tmp_path / "jobs"
    with start(tmp_path, jobs, repository) as process:
        until(lambda: find_endpoint(jobs, "two") is not None or process.poll() is not None, 120)
        endpoint = find_endpoint(jobs, "two")
        assert endpoint is not None, process.communicate()[0]
        client = ControlClient(endpoint)
        until(lambda: client.status()["global_step"] >= 3)
        command_id = client.send("pause").command_id
        said = process.communicate(timeout=100)[0]
    assert process.returncode == 0, said
    status = json.loads((jobs / "two/status.json").read_text())
    (command,) = json.loads((jobs / "two/commands.json").read_text())["commands"]
    assert (status["state"], status["intent"]) == ("paused", "pause")
    assert (command["command_id"], command["state"]) == (command_id, "durable")
    assert [path.name for path in jobs.iterdir()] == ["two"], "the other rank listens, too"
    assert not list(tmp_path.glob("ours-*")), "a rank went on after the pause"
    (checkpoint,) = list_whole(tmp_path / "ours")
    assert (checkpoint.path.name, checkpoint.step) == (command["checkpoint"], status["step"])
    assert fault_of(checkpoint.path) is None
    files = {entry["path"] for entry in json.loads((checkpoint.path / "manifest.json").read_text())["files"]}
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= files

    with start(tmp_path, jobs, repository, "resume") as process:
        said = process.communicate(timeout=150)[0]
    assert process.returncode == 0, said
    assert json.loads((jobs / "two/status.json").read_text())["state"] == "completed"
    weights = {file.name: file.read_text() for file in (*tmp_path.glob("bare-*"), *tmp_path.glob("ours-*"))}
    assert sorted(weights) == ["bare-0", "bare-1", "ours-0", "ours-1"]
    assert len(set(weights.values())) == 1, weights
