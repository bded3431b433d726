"""`tunefleet trace` of a real run that was paused and resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.story import until
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

TRAIN = """apiVersion: tunefleet/v1
metadata: {name: train}
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {prompts: [one, two, three, four]}
  training: {max_steps: 400, batch_size: 1, save_steps: 50}
"""


def test_the_phases_of_a_paused_run_add_up_to_its_wall_time(tmp_path: Path, free_port: Callable[[], int]) -> None:
    with (
        LocalFleet(tmp_path / "fleet", port=free_port(), workers=1, environment={}, save_client=False) as fleet,
        Client(fleet.url, fleet.key) as client,
    ):
        run = client.submit(TRAIN)
        until(lambda: client.tasks.checkpoints(run.task_id), "a checkpoint")
        run.pause_and_wait()
        client.tasks.resume(run.task_id)
        task = run.wait(timeout_s=200)
        assert task.status == "completed", task.error
        environment = {**os.environ, "TUNEFLEET_URL": fleet.url, "TUNEFLEET_KEY": fleet.key}
        command = [str(Path(sys.executable).with_name("tunefleet")), "trace", run.task_id]
        found = json.loads(subprocess.check_output([*command, "--json"], env=environment))
        shown = subprocess.check_output(command, env=environment, text=True)
    assert task.finished_at is not None
    wall_s = (task.finished_at - task.created_at).total_seconds()
    assert sum(phase["seconds"] for phase in found["phases"]) == pytest.approx(wall_s, abs=0.05)
    names = [phase["name"] for phase in found["phases"]]
    order = [names.index(name) for name in ("queue", "fetch", "start", "load", "train", "save", "paused")]
    assert order == sorted(order)
    assert names.count("train") == 2
    assert names[-1] == "deliver"
    assert {phase["attempt"] for phase in found["phases"]} == {None, 1, 2}
    assert "paused" in shown
    assert "█" in shown
