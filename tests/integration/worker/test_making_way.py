"""What a worker does about a running training by itself: it makes way on somebody's own machine, and launches again.

The driver of the GPU and the lack of memory are fakes; server, worker, trainer and the other process are real.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.story import Story, alive, check_series, document, submit, until
from tests.libraries import required
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.worker.state import StateFolder

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(240)]

FAKES = Path(__file__).parents[2] / "fakes"
STEPS = 24
IDLE_S = 1


class Gpu:
    """The one GPU of the machine, as the fake driver tells it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.used_by()

    def used_by(self, *pids: int) -> None:
        """Say which processes have opened it."""
        gpu = {"uuid": "GPU-fake", "name": "Fake RTX", "total": 8 << 30, "used": 1 << 30, "mig": []}
        text = json.dumps({"gpus": [gpu | {"compute": [[pid, 1 << 30] for pid in pids], "graphics": []}]})
        fresh = self._file.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._file)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machine")


@pytest.fixture(scope="module")
def gpu(home: Path) -> Gpu:
    return Gpu(home / "gpus.json")


@pytest.fixture(scope="module")
def fleet(home: Path, gpu: Gpu, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    required("trl")
    environment = {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TUNEFLEET_YIELD": "pause",
        "TUNEFLEET_YIELD_IDLE_S": str(IDLE_S),
        "TUNEFLEET_HOME": str(home / "home"),
        "PYTHONPATH": os.pathsep.join([str(FAKES / "nvml"), str(FAKES / "memory")]),
        "FAKE_NVML": str(home / "gpus.json"),
    }
    with LocalFleet(home / "data", port=free_port(), environment=environment, save_client=False) as made:
        yield made


@pytest.fixture
def client(fleet: LocalFleet) -> Iterator[Client]:
    with Client(fleet.url, fleet.key) as made:
        yield made


@pytest.fixture
def somebody() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.kill()
    process.communicate()


def _interrupted(fleet: LocalFleet) -> bool:
    return any(record.watched.interruption for record in StateFolder(fleet.results_dir()).attempts())


def _weights(story: Story) -> str:
    return hashlib.sha256((story.folder.root / "final_lora" / "adapter_model.safetensors").read_bytes()).hexdigest()


def _stand_still(client: Client, story: Story) -> None:
    """Stop the trainer until the server shows it, and let it go on until it does not."""
    trainer = story.trainer()
    assert trainer is not None
    os.kill(trainer.pid, signal.SIGSTOP)
    until(lambda: client.tasks.get(story.task_id).stalled_since, "the server shows the standstill")
    os.kill(trainer.pid, signal.SIGCONT)
    until(lambda: not client.tasks.get(story.task_id).stalled_since, "the mark goes away")
    assert "is stopped (SIGSTOP)" in story.folder.log.read_text()


def test_a_training_makes_way_for_somebody_and_ends_with_the_same_weights(
    fleet: LocalFleet, client: Client, gpu: Gpu, somebody: int
) -> None:
    text = document(STEPS).replace("  retry:", "  limits: {stall_after_s: 2}\n  retry:")
    undisturbed = Story(fleet, client.submit(text).task_id, STEPS)
    until(lambda: undisturbed.step() >= 2, "step 2")
    _stand_still(client, undisturbed)
    assert client.tasks.wait(undisturbed.task_id, timeout_s=120).status == "completed"

    story = submit(client, fleet, STEPS)
    until(lambda: story.step() >= 2, "step 2")
    trainer = story.trainer()
    assert trainer is not None
    os.kill(trainer.pid, signal.SIGSTOP)  # a fast machine would be done before anybody has looked
    began = time.monotonic()
    gpu.used_by(somebody, trainer.pid)
    until(lambda: _interrupted(fleet), "the worker has decided", within_s=10)
    os.kill(trainer.pid, signal.SIGCONT)
    until(lambda: not alive(trainer.pid), "the process is gone", within_s=10)
    took_s = time.monotonic() - began
    until(lambda: (now := client.tasks.get(story.task_id).progress) and now.phase == "yielded", "it is shown")
    task = client.tasks.get(story.task_id)
    assert (task.status, len(task.attempt_list)) == ("running", 1)
    (worker,) = client.workers.list().items
    assert f"pid {somebody}" in str(worker.capabilities.gpus[0].in_use_by)
    assert story.step() < STEPS
    print(f"GPU taken -> trainer gone: {took_s:.1f} s, at step {story.step()} of {STEPS}")

    time.sleep(2 * IDLE_S)
    assert len(story.launches()) == 1, "it waits as long as somebody is there"
    gpu.used_by()
    task = client.tasks.wait(story.task_id, timeout_s=120)
    assert (task.status, task.error, len(task.attempt_list)) == ("completed", None, 1)
    (_, resumed_at) = story.launches()[1]
    assert resumed_at >= 2
    check_series(client, story)
    assert _weights(story) == _weights(undisturbed)
    until(lambda: client.workers.list().items[0].capabilities.gpus[0].in_use_by is None, "the GPU is free again")


def test_a_training_is_launched_again_with_half_the_batch_and_after_a_standstill(
    fleet: LocalFleet, client: Client
) -> None:
    text = document(STEPS).replace("batch_size: 2", "batch_size: 4").replace("save_steps: 4", "save_steps: 1")
    text = text.replace("  retry:", "  on_stall: restart\n  limits: {stall_after_s: 2}\n  retry:")
    story = Story(fleet, client.submit(text).task_id, STEPS)
    until(lambda: story.step() >= 4, "a step with half the batch")
    trainer = story.trainer()
    assert trainer is not None
    os.kill(trainer.pid, signal.SIGSTOP)
    until(lambda: not alive(trainer.pid), "the one that stands still is ended")
    task = client.tasks.wait(story.task_id, timeout_s=60)
    assert (task.status, task.error, len(task.attempt_list)) == ("completed", None, 1), "all in one attempt"
    begun = [from_step for _, from_step in story.launches()]
    assert begun[:2] == [0, 2], "it goes on from the checkpoint before the step that did not fit"
    assert len(begun) == 3
    assert 3 <= begun[2] < STEPS
    check_series(client, story)
    assert task.result is not None
    assert task.result["result"]["overrides"] == {"batch_size": 2, "gradient_accumulation_steps": 2}
    kinds = [event.kind for event in client.events.list(task_id=story.task_id)]
    assert "task.stalled" in kinds
    told = "".join(file.read_text() for file in story.folder.journal_dir.glob("*.jsonl"))
    assert '"training.batch_halved"' in told
    assert '"job.restarted"' in told
