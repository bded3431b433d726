"""SIGKILL to server, worker and trainer at random moments of a real training: nothing is lost, nothing is doubled.

`make chaos ROUNDS=20` plays more rounds. A round's plan follows from its number alone, so that a failure can be played
again: `pytest tests/acceptance/test_kill_matrix.py -k 'round-7'`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psutil
import pytest

from tunefleet.cli.fleet import LocalFleet
from tunefleet.client import Client
from tunefleet.wire.api import TaskDetail
from tunefleet.wire.jobfolder import JobFolder, JobProcess

pytestmark = [pytest.mark.slow, pytest.mark.torch]

ROUNDS = int(os.environ.get("TUNEFLEET_CHAOS_ROUNDS", "3"))
STEPS = 32
SAVE_EVERY = 4
DOCUMENT = f"""
apiVersion: tunefleet/v1
kind: LoRASFTTask
metadata: {{name: chaos}}
spec:
  taskType: lora_sft
  model: {{source: {{identifier: "builtin:gsm8k-llama-2m"}}}}
  data: {{path: "builtin:gsm8k", prompt_column: question, response_column: answer, max_samples: 64}}
  lora: {{r: 2, alpha: 4, target_modules: [q_proj]}}
  training:
    max_steps: {STEPS}
    batch_size: 2
    max_seq_length: 96
    logging_steps: 1
    save_steps: {SAVE_EVERY}
    learning_rate: 1e-3
    seed: 0
  retry: {{max_attempts: 9, backoff_s: 0}}
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    pytest.importorskip("trl")
    environment = {"TUNEFLEET_LOST_AFTER_S": "15", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    data = tmp_path_factory.mktemp("chaos")
    with LocalFleet(data, port=free_port(), environment=environment, save_client=False) as fleet:
        yield fleet


@dataclass
class Story:
    """One task, its job folder, and what was done to it."""

    fleet: LocalFleet
    task_id: str
    folder: JobFolder
    resumable_at_kill: list[int] = field(default_factory=list)
    """For each kill of the trainer, the step of the newest whole checkpoint."""

    def launches(self) -> list[tuple[str, int]]:
        """Id and first step of each launch, in order."""
        files = self.folder.journal_dir.glob("*.jsonl")
        first = [json.loads(text.splitlines()[0]) for file in files if "\n" in (text := file.read_text())]
        return [(record["launch"], record["from_step"]) for record in sorted(first, key=lambda record: record["at"])]

    def step(self) -> int:
        """The newest step that any launch has logged."""
        lines = [line for file in self.folder.journal_dir.glob("*.jsonl") for line in file.read_text().splitlines(True)]
        whole = [json.loads(line) for line in lines if line.endswith("\n")]
        return max((record["step"] for record in whole if record["type"] == "metric"), default=0)

    def trainer(self) -> JobProcess | None:
        """The newest trainer process."""
        try:
            return JobProcess.model_validate_json((self.folder.root / "process.json").read_bytes())
        except FileNotFoundError:
            return None

    def checkpoint(self) -> int:
        """Step of the newest whole checkpoint; 0 if there is none."""
        whole = self.folder.checkpoints_dir.glob("checkpoint-*/manifest.json")
        return max((int(file.parent.name.rpartition("-")[2]) for file in whole), default=0)

    def kill(self, victim: str) -> None:
        """Kill one process; server and worker must leave the trainer alone."""
        trainer = self.trainer()
        if victim == "trainer":
            self.resumable_at_kill.append(self.checkpoint())
            if trainer is not None and _alive(trainer.pid):
                os.kill(trainer.pid, signal.SIGKILL)
            return
        pid = self.fleet.pid(victim)
        if pid is None:
            return
        lived = trainer is not None and _alive(trainer.pid)
        os.kill(pid, signal.SIGKILL)
        _until(lambda: self.fleet.pid(victim) not in {pid, None}, f"the {victim} is started again")
        now = self.trainer()
        if lived and trainer is not None and now is not None:
            still_needed = not self.folder.responses_json.exists()
            assert now.pid == trainer.pid, f"killing the {victim} restarted the trainer"
            assert _alive(trainer.pid) or not still_needed or self.step() == STEPS, (
                f"killing the {victim} ended the trainer"
            )


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _until(predicate: Callable[[], object], what: str, *, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not predicate():
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        time.sleep(0.02)


def _plan(number: int) -> list[tuple[int, float, str]]:
    """At which steps, how long after, and whom: each victim once, in any order, from the first step to the last."""
    dice = random.Random(number)
    victims = dice.sample(["server", "worker", "trainer"], k=3)
    steps = sorted(dice.randint(1, STEPS) for _ in victims)
    return [(step, dice.uniform(0.0, 0.4), victim) for step, victim in zip(steps, victims, strict=True)]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", range(ROUNDS), ids=lambda number: f"round-{number}")
def test_a_training_survives_the_death_of_everybody(fleet: LocalFleet, number: int) -> None:
    with Client(fleet.url, fleet.key, patience_s=30) as client:
        task_id = client.submit(DOCUMENT).task_id
        story = Story(fleet, task_id, JobFolder(fleet.results_dir() / task_id))
        for step, delay_s, victim in _plan(number):
            _until(lambda step=step: story.step() >= step, f"step {step}")
            time.sleep(delay_s)
            story.kill(victim)
        task = client.tasks.wait(task_id, timeout_s=90)
        _check_task(client, story, task)
        _check_series(client, task_id)


def _check_task(client: Client, story: Story, task: TaskDetail) -> None:
    assert (task.status, task.error) == ("completed", None)
    launches = story.launches()
    assert len(launches) <= 1 + len(story.resumable_at_kill), "only the death of the trainer starts another one"
    assert launches[0][1] == 0
    for (_, from_step), saved in zip(launches[1:], story.resumable_at_kill, strict=False):
        assert from_step >= saved, f"resumed from {from_step}, though {saved} was whole"
    assert len(task.attempt_list) == len(launches), "the death of server or worker costs no attempt"
    completed = [event for event in client.events.list(task_id=task.id) if event.kind == "task.completed"]
    assert len(completed) == 1
    outputs = [artifact for artifact in client.artifacts.list(task_id=task.id).items if artifact.kind == "adapter"]
    assert len(outputs) == 1
    assert task.result is not None
    trainer = story.trainer()
    assert trainer is None or not _alive(trainer.pid)


def _check_series(client: Client, task_id: str) -> None:
    """The windows of the stored series tile the run: no gap, no duplicate."""
    points = [point for point in client.tasks.metrics(task_id).points if "loss" in point.values]
    windows = [point.window for point in points]
    assert windows == [(step, step) for step in range(1, STEPS + 1)]
