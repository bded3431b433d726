"""A training as the acceptance tests watch it: from its job folder, so that it can be seen while the server is dead."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.schemas.job_folder import JobFolder, JobProcess

SAVE_EVERY = 4


def document(steps: int) -> str:
    """A small LoRA training that logs every step and is retried at once."""
    return f"""
apiVersion: tunefleet/v1
kind: LoRASFTTask
metadata: {{name: chaos}}
spec:
  taskType: lora_sft
  model: {{source: {{identifier: "builtin:gsm8k-llama-2m"}}}}
  data: {{path: "builtin:gsm8k", prompt_column: question, response_column: answer, max_samples: 64}}
  lora: {{r: 2, alpha: 4, target_modules: [q_proj]}}
  training:
    max_steps: {steps}
    batch_size: 2
    max_seq_length: 96
    logging_steps: 1
    save_steps: {SAVE_EVERY}
    learning_rate: 1e-3
    seed: 0
  retry: {{max_attempts: 9, backoff_s: 0}}
"""


@dataclass
class Story:
    """One task, its job folder, and what was done to it."""

    fleet: LocalFleet
    task_id: str
    steps: int
    resumable_at_kill: list[int] = field(default_factory=list)
    """For each kill of the trainer, the step of the newest whole checkpoint."""

    @property
    def folder(self) -> JobFolder:
        """The task's job folder on the fleet's worker."""
        return JobFolder(self.fleet.results_dir() / self.task_id)

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
            if trainer is not None and alive(trainer.pid):
                os.kill(trainer.pid, signal.SIGKILL)
                until(lambda: not alive(trainer.pid), "the killed trainer is gone")
            return
        pid = self.fleet.pid(victim)
        if pid is None:
            return
        lived = trainer is not None and alive(trainer.pid)
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.fleet.pid(victim) not in {pid, None}, f"the {victim} is started again")
        now = self.trainer()
        if lived and trainer is not None and now is not None:
            still_needed = not self.folder.responses_json.exists()
            assert now.pid == trainer.pid, f"killing the {victim} restarted the trainer"
            assert alive(trainer.pid) or not still_needed or self.step() == self.steps, (
                f"killing the {victim} ended the trainer"
            )


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(predicate: Callable[[], object], what: str, *, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not predicate():
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        time.sleep(0.02)


def submit(client: Client, fleet: LocalFleet, steps: int) -> Story:
    """Submit a training and watch it."""
    return Story(fleet, client.submit(document(steps)).task_id, steps)


def check_series(client: Client, story: Story) -> None:
    """The windows of the stored series tile the run: no gap, no duplicate."""
    points = [point for point in client.tasks.metrics(story.task_id).points if "loss" in point.values]
    assert [point.window for point in points] == [(step, step) for step in range(1, story.steps + 1)]
