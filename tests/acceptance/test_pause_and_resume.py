"""Pausing a task of a server, and what happens when server, worker and trainer die around it."""

from __future__ import annotations

import hashlib
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.story import Story, alive, check_series, submit, until
from tests.libraries import required
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(240)]

STEPS = 40
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture
def fleet(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    required("trl")
    with LocalFleet(tmp_path / "data", port=free_port(), environment=ENVIRONMENT, save_client=False) as made:
        yield made


def weights(story: Story) -> str:
    """Digest of what was trained."""
    return hashlib.sha256((story.folder.root / "final_lora" / "adapter_model.safetensors").read_bytes()).hexdigest()


@pytest.mark.story
def test_a_paused_task_ends_with_the_weights_of_one_that_never_paused(fleet: LocalFleet) -> None:
    with Client(fleet.url, fleet.key, patience_s=30) as client:
        straight = submit(client, fleet, STEPS)
        assert client.tasks.wait(straight.task_id, timeout_s=120).status == "completed"

        story = submit(client, fleet, STEPS)
        pause_at = random.randint(3, STEPS // 3)
        until(lambda: story.step() >= pause_at, f"step {pause_at}")
        trainer = story.trainer()
        assert trainer is not None
        queued_at = client.tasks.get(story.task_id).queued_at
        # The server dies between the wish and its fulfilment: nothing of it is lost. The trainer stands still until it
        # is back, or it might be done before.
        os.kill(trainer.pid, signal.SIGSTOP)
        assert client.tasks.pause(story.task_id).desired == "pause"
        story.kill("server")
        until(lambda: client.tasks.get(story.task_id).desired == "pause", "the server that was started again")
        os.kill(trainer.pid, signal.SIGCONT)
        paused = client.tasks.pause_and_wait(story.task_id, timeout_s=60)
        assert not alive(trainer.pid), "the process is gone, and with it what it held of the machine"
        (command,) = client.tasks.commands(story.task_id)
        step = command.step
        assert (command.command, command.state) == ("pause", "durable")
        assert step is not None
        assert step >= pause_at
        newest = client.tasks.checkpoints(story.task_id)[-1]
        assert (newest.step, newest.artifact) == (step, f"checkpoint-{step}"), (
            "it is on the server: it may go on anywhere"
        )
        assert paused.queued_at == queued_at

        # Its slot is free meanwhile.
        assert client.tasks.resume(story.task_id).status == "queued"
        done = client.tasks.wait(story.task_id, timeout_s=120)
        assert (done.status, done.error, done.queued_at) == ("completed", None, queued_at)
        assert [attempt.reason for attempt in done.attempt_list] == ["paused", "finished"]
        assert [from_step for _, from_step in story.launches()] == [0, step]
        assert weights(story) == weights(straight)
        check_series(client, story)
        assert {made.kind for made in client.artifacts.list(task_id=story.task_id).items} == {"adapter"}

        # What has ended goes on as a task of its own, here from a checkpoint before the end.
        before = next(each.step for each in client.tasks.checkpoints(story.task_id) if each.resumable)
        again = client.tasks.resume(story.task_id, from_step=before)
        assert again.parent_task_id == story.task_id
        child = Story(fleet, again.id, STEPS)
        assert client.tasks.wait(child.task_id, timeout_s=120).status == "completed"
        assert child.launches()[0][1] == before
        assert weights(child) == weights(straight)
