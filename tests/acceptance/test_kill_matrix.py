"""SIGKILL to server, worker and trainer at random moments of a real training: nothing is lost, nothing is doubled.

`make kill-matrix ROUNDS=20` plays more rounds. A round's plan follows from its number alone, so that a failure can be
played again: `pytest tests/acceptance/test_kill_matrix.py -k 'round-7'`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.story import Story, alive, check_series, submit, until
from tests.libraries import required
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.schemas.api import TaskDetail

pytestmark = [pytest.mark.proof, pytest.mark.torch]

ROUNDS = int(os.environ.get("TUNEFLEET_CHAOS_ROUNDS", "2"))
STEPS = 32


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    required("trl")
    environment = {"TUNEFLEET_LOST_AFTER_S": "15", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    data = tmp_path_factory.mktemp("chaos")
    with LocalFleet(data, port=free_port(), environment=environment, save_client=False) as fleet:
        yield fleet


def _plan(number: int) -> list[tuple[int, float, str]]:
    """At which steps, how long after, and whom: each victim once, in any order, from the first step to the last."""
    dice = random.Random(number)
    victims = dice.sample(["server", "worker", "trainer"], k=3)
    steps = sorted(dice.randint(1, STEPS) for _ in victims)
    return [(step, dice.uniform(0.0, 0.4), victim) for step, victim in zip(steps, victims, strict=True)]


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "number",
    [pytest.param(number, id=f"round-{number}", marks=[pytest.mark.story] * (number == 0)) for number in range(ROUNDS)],
)
def test_a_training_survives_the_death_of_everybody(fleet: LocalFleet, number: int) -> None:
    with Client(fleet.url, fleet.key, patience_s=30) as client:
        story = submit(client, fleet, STEPS)
        for step, delay_s, victim in _plan(number):
            until(lambda step=step: story.step() >= step, f"step {step}")
            time.sleep(delay_s)
            story.kill(victim)
        task = client.tasks.wait(story.task_id, timeout_s=90)
        _check_task(client, story, task)
        check_series(client, story)


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
    assert trainer is None or not alive(trainer.pid)
