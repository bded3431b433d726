"""GPUs from the driver to the jobs, through a real server and worker; the driver and its two GPUs are fakes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.timeout(240)]

FAKES = Path(__file__).parents[2] / "fakes"
GPU = {"name": "Fake A100", "total": 80 << 30, "used": 0, "power_mw": 250_000, "compute": [], "graphics": [], "mig": []}
TRAINING = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: train}
spec:
  taskType: dpo
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {preferences: [{prompt: p, chosen: c, rejected: r}]}
  training: {TRAINING}
"""
FUNCTION = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: call}
spec: {taskType: python, code: "def main(inputs): pass", resources: {hardware: {gpu: {count: 0}}}}
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    home = tmp_path_factory.mktemp("machine")
    (home / "gpus.json").write_text(json.dumps({"gpus": [GPU | {"uuid": "GPU-a"}, GPU | {"uuid": "GPU-b"}]}))
    environment = {
        "FAKE_NVML": str(home / "gpus.json"),
        "HEARTBEAT_INTERVAL_SEC": "0.2",
        "PYTHONPATH": os.pathsep.join([str(FAKES / "nvml"), str(FAKES / "looker")]),
        "TUNEFLEET_ALLOW_CODE": "true",
        "TUNEFLEET_HOME": str(home / "home"),
        "TUNEFLEET_WARM_START": "false",
    }
    with LocalFleet(home / "data", port=free_port(), environment=environment, save_client=False) as made:
        yield made


def _devices(client: Client, document: str) -> set[str]:
    """Return what a job was told to see."""
    ended = client.submit(document).wait(timeout_s=120)
    assert ended.status == "completed", (ended.error, ended.detail)
    assert ended.result is not None
    return set(filter(None, ended.result["result"]["environment"]["CUDA_VISIBLE_DEVICES"].split(",")))


def test_fault_29_a_worker_is_not_pinned_to_the_devices_of_an_earlier_task(fleet: LocalFleet) -> None:
    def training(text: str) -> str:
        return TRAINING.replace("{TRAINING}", text)

    # Each job has changed the variable in its own process besides, as trainers do.
    with Client(fleet.url, fleet.key) as client:
        seen = [
            _devices(client, training("{visible_devices: [1]}")),
            _devices(client, training("{allow_multi_gpu: true}")),
            _devices(client, training("{allow_multi_gpu: false, primary_gpu: 0}")),
            _devices(client, FUNCTION),
            _devices(client, training("{allow_multi_gpu: true}")),
        ]
        assert len(client.workers.list().items) == 1
    assert seen == [{"GPU-b"}, {"GPU-a", "GPU-b"}, {"GPU-a"}, set(), {"GPU-a", "GPU-b"}]


def test_what_the_gpus_draw_is_added_up_in_the_metrics(fleet: LocalFleet) -> None:
    with httpx.Client(base_url=fleet.url, headers={"Authorization": f"Bearer {fleet.key}"}) as client:

        def energy_kwh() -> float:
            found = client.get("/metrics", headers={"Accept": "application/json"}).json()
            told: float | None = found["workers"]["totals"]["gpu_energy_kwh"]
            return told or 0.0

        deadline = time.monotonic() + 60
        while not (first := energy_kwh()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        began = time.monotonic()
        while (second := energy_kwh()) <= first:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # Two GPUs of 250 W each; a figure may be one heartbeat older than the look at it.
        assert (second - first) * 3.6e6 <= 500 * (time.monotonic() - began + 10)
