"""A machine dies with everything on it, another one goes on; and the training there is steered by a user."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.acceptance.story import Story, document, until
from tests.libraries import required
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.cli.main import app
from tunefleet.client import Client
from tunefleet.schemas.job_folder import JobFolder

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(240)]

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


class Machine:
    """A worker as a process of its own, that nobody starts again."""

    def __init__(self, fleet: LocalFleet, name: str, results: Path) -> None:
        self.results = results
        key = (fleet.data / "keys" / "worker.key").read_text().strip()
        environment = {**os.environ, **ENVIRONMENT, "TUNEFLEET_WORKER_KEY": key}
        environment["TUNEFLEET_HOME"] = str(results / "home")
        command = [sys.executable, "-m", "tunefleet.worker", "--server", fleet.url, "--id", name]
        results.mkdir()
        with (results / "worker.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--results-dir", str(results)], env=environment, stdout=log, stderr=log
            )

    def end(self) -> None:
        """Stop it and its job."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)


def test_another_machine_goes_on_when_worker_and_trainer_die(tmp_path: Path, free_port: Callable[[], int]) -> None:
    required("trl")
    environment = {**ENVIRONMENT, "TUNEFLEET_LOST_AFTER_S": "3"}
    fleet = LocalFleet(tmp_path / "data", port=free_port(), workers=0, environment=environment, save_client=False)
    machines: list[Machine] = []
    with fleet, Client(fleet.url, fleet.key, patience_s=30) as client:
        try:
            machines.append(Machine(fleet, "first", tmp_path / "first"))
            held_out = "max_samples: 64, eval: {split: test, max_samples: 4}"
            text = document(300).replace("max_samples: 64", held_out)
            text = text.replace("save_steps: 4", "save_steps: 4\n    eval_strategy: steps\n    eval_steps: 1000")
            story = Story(fleet, client.submit(text).task_id, 300)
            until(lambda: client.tasks.get(story.task_id).worker_id == "first", "the first machine has it")
            machines.append(Machine(fleet, "second", tmp_path / "second"))
            until(lambda: any(c.artifact for c in client.tasks.checkpoints(story.task_id)), "a checkpoint is uploaded")
            until(lambda: len(client.workers.list().items) == 2, "the second machine is there")
            folder = JobFolder(tmp_path / "first" / story.task_id)
            machines[0].process.kill()
            machines[0].process.wait()
            for pid in _processes(folder):
                os.kill(pid, signal.SIGKILL)
            moved = tmp_path / "second" / story.task_id / "journal"
            until(lambda: [*moved.glob("*.jsonl")], "the second machine has begun", within_s=90)
            until(lambda: client.tasks.get(story.task_id).worker_id == "second", "and says so")
            _steer(client, story)
            client.tasks.stop(story.task_id)
            done = client.tasks.wait(story.task_id, timeout_s=120)
        finally:
            for machine in machines:
                machine.end()
        assert (done.status, done.reason) == ("completed", "stopped_early")
        assert [attempt.reason for attempt in done.attempt_list] == ["worker_lost", "stopped_early"]
        launched = json.loads(min(moved.glob("*.jsonl")).read_text().splitlines()[0])
        assert launched["from_step"] > 0, "it did not begin anew"
        assert (folder.journal_dir / f"{launched['parent']}.jsonl").exists(), "it knows which launch it goes on from"


def _steer(client: Client, story: Story) -> None:
    """Change the learning rate and measure, as a user does from the command line."""
    environment = {"TUNEFLEET_URL": story.fleet.url, "TUNEFLEET_KEY": story.fleet.key}

    def run(*words: str) -> int:
        """Run a command; returns the step at which it was applied."""
        done = CliRunner().invoke(app, [*words, "--json"], env=environment)
        assert done.exit_code == 0, done.output
        command = json.loads(done.stdout)
        assert command["state"] == "applied", command
        return int(command["step"])

    changed_at = run("set", story.task_id, "learning_rate=0.01")
    measured_at = run("evaluate", story.task_id)

    def points(name: str) -> dict[int, float]:
        found = client.tasks.metrics(story.task_id).points
        return {point.step: point.values[name] for point in found if name in point.values}

    until(lambda: max(points("learning_rate")) > changed_at, "a step with the new rate")
    rates = points("learning_rate")
    assert rates[max(rates)] > 5 * rates[changed_at - 1]
    until(lambda: measured_at in points("eval_loss"), "the loss that was asked for")


def _processes(folder: JobFolder) -> list[int]:
    """The trainer and its keeper."""
    process = json.loads(folder.process_json.read_bytes())
    return [process["keeper_pid"], process["pid"]]
