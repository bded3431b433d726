"""The public callback in somebody's own script under torchrun, steered from outside over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.ranks.conftest import PROGRAM_DIR, until
from tunefleet.runtime.control import ControlClient, find_endpoint
from tunefleet.trainer_control.checkpoints.manifest import invalid_reason, list_complete

pytestmark = [pytest.mark.torch, pytest.mark.proof, pytest.mark.timeout(300)]

LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def ended(folder: Path, launch: int) -> list[str]:
    """Wait for both ranks of a launch, and return their exit codes."""
    files = [folder / f"ended-{launch}-{rank}" for rank in range(2)]
    until(lambda: all(file.exists() for file in files), 120)
    return [file.read_text() for file in files]


@pytest.mark.story
def test_two_ranks_pause_at_one_step_and_go_on_to_the_same_weights(
    tmp_path: Path, repository: Path, free_port: Callable[[], int]
) -> None:
    jobs = tmp_path / "jobs"
    environment = {
        **os.environ, "TUNEFLEET_JOBS_DIR": str(jobs), "PYTHONPATH": str(repository), "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    command = [*LAUNCHER, str(PROGRAM_DIR / "own_script.py"), str(tmp_path), str(free_port()), str(free_port())]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        until(lambda: find_endpoint(jobs, "two") is not None or process.poll() is not None, 120)
        endpoint = find_endpoint(jobs, "two")
        assert endpoint is not None
        client = ControlClient(endpoint)
        until(lambda: client.status()["global_step"] >= 3)
        command_id = client.send("pause").command_id
        assert ended(tmp_path, 0) == ["0", "0"]
        paused_at(tmp_path, jobs, command_id)
        (tmp_path / "go").touch()
        assert ended(tmp_path, 1) == ["0", "0"]
        assert process.wait(60) == 0
    finally:
        print((tmp_path / "log").read_text())
        process.terminate()
        process.wait(60)
    assert json.loads((jobs / "two/status.json").read_text())["state"] == "completed"
    weights = {file.name: file.read_text() for file in (*tmp_path.glob("bare-*"), *tmp_path.glob("ours-*"))}
    assert sorted(weights) == ["bare-0", "bare-1", "ours-0", "ours-1"]
    assert len(set(weights.values())) == 1, weights


def paused_at(folder: Path, jobs: Path, command_id: str) -> None:
    status = json.loads((jobs / "two/status.json").read_text())
    (command,) = json.loads((jobs / "two/commands.json").read_text())["commands"]
    assert (status["state"], status["intent"]) == ("paused", "pause")
    assert (command["command_id"], command["state"]) == (command_id, "durable")
    assert [path.name for path in jobs.iterdir()] == ["two"], "the other rank listens, too"
    assert not list(folder.glob("ours-*")), "a rank went on after the pause"
    (checkpoint,) = list_complete(folder / "ours")
    assert (checkpoint.path.name, checkpoint.step) == (command["checkpoint"], status["step"])
    assert invalid_reason(checkpoint.path) is None
    files = {entry["path"] for entry in json.loads((checkpoint.path / "manifest.json").read_text())["files"]}
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= files
