"""An agent on somebody's own machine: the driver is a fake, agent, trainer and the other process are real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.agent.conftest import AgentProcess, request, until, write_rows
from tests.libraries import required
from tunefleet.runtime import locks

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(180)]

FAKE_NVML = Path(__file__).parents[2] / "fakes" / "nvml"


def _use(file: Path, *pids: int) -> None:
    gpu = {"uuid": "GPU-fake", "name": "Fake RTX", "total": 8 << 30, "used": 1 << 30, "mig": []}
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps({"gpus": [gpu | {"compute": [[pid, 1 << 30] for pid in pids], "graphics": []}]}))
    fresh.replace(file)


def test_a_job_makes_way_and_goes_on_also_with_the_next_agent(tmp_path: Path, free_port: Callable[[], int]) -> None:
    required("trl")
    write_rows(tmp_path / "datasets")
    gpus = tmp_path / "gpus.json"
    _use(gpus)
    env = {
        "BACKEND_URL": "none",
        "ENABLE_MIXED_PRECISION": "false",
        "TUNEFLEET_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(FAKE_NVML),
        "FAKE_NVML": str(gpus),
        "TUNEFLEET_YIELD": "pause",
        "TUNEFLEET_YIELD_IDLE_S": "1",
    }
    agent = AgentProcess(tmp_path, env, free_port())
    agent.start()
    somebody = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert agent.post("/api/training/execute", request("shared", max_steps=40, save_steps=1000)).status_code == 200
        agent.until_step("shared", 2)
        trainer = agent.trainer("shared")
        record = agent.job_folder("shared") / "agent.json"
        os.kill(trainer, signal.SIGSTOP)  # a fast machine would be done before anybody has looked
        _use(gpus, somebody.pid, trainer)
        until(lambda: json.loads(record.read_text())["watched"]["interruption"], "the agent has decided", 10)
        os.kill(trainer, signal.SIGCONT)
        until(lambda: not locks.is_held(agent.job_folder("shared") / "lock"), "the GPU is free", 10)
        assert agent.status("shared")["status"] == "running", "nobody has paused it"

        agent.kill()
        agent.start()
        time.sleep(2)
        assert not locks.is_held(agent.job_folder("shared") / "lock"), "it waits as long as somebody is there"
        _use(gpus)
        assert agent.until_status("shared", "completed")["current_step"] == 40
        launches = list((agent.job_folder("shared") / "journal").glob("*.jsonl"))
        assert len(launches) == 2
        assert sum("job.yielded" in file.read_text() for file in launches) == 1
    finally:
        somebody.kill()
        somebody.communicate()
        agent.clean()
