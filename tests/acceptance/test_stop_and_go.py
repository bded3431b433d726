"""What becomes of a running training when `tunefleet up` is stopped, and at the next `up` on the same folder."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.story import alive, check_series, submit, until
from tests.libraries import required
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(240)]

STEPS = 80


def test_a_stopped_fleet_goes_on_where_it_was(tmp_path: Path, free_port: Callable[[], int]) -> None:
    required("trl")
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def fleet() -> LocalFleet:
        made = LocalFleet(tmp_path / "data", port=free_port(), environment=environment, save_client=False)
        return made.start()

    first = fleet()
    with Client(first.url, first.key) as client:
        story = submit(client, first, STEPS)
        until(lambda: story.step() >= 6, "step 6")
    trainer = story.trainer()
    assert trainer is not None
    # A fast machine would be done before the next fleet is up.
    os.kill(trainer.pid, signal.SIGSTOP)
    first.stop(keep_jobs=True)
    assert alive(trainer.pid), "kept: the training goes on without server and worker"

    second = fleet()
    with Client(second.url, second.key) as client:
        until(lambda: client.tasks.get(story.task_id).progress, "the second fleet hears of the training")
    os.kill(trainer.pid, signal.SIGCONT)
    second.stop()
    assert not alive(trainer.pid), "suspended: nothing is left running"
    saved = story.checkpoint()
    assert saved >= 4

    third = fleet()
    with Client(third.url, third.key) as client:
        task = client.tasks.wait(story.task_id, timeout_s=120)
        assert (task.status, task.error) == ("completed", None)
        assert len(task.attempt_list) == 1, "to stop is not to fail"
        assert [from_step for _, from_step in story.launches()][1:] == [saved]
        check_series(client, story)
    third.stop()
