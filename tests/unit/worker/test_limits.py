"""What an attempt's jobs ran is counted, whatever wall clock and worker do."""

from __future__ import annotations

import time

import pytest

from tests.unit.worker.fakes import FakeEnd, Running, World
from tunefleet.lifecycle.task import TaskReason


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


def test_a_wall_clock_that_jumps_ends_no_task(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    token = world.server.offer(spec={"limits": {"max_runtime_s": 3600, "stall_after_s": 3600}})
    with Running(world):
        job = world.job()
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 86_400)
        time.sleep(0.5)
        assert job.cancels == []
        job.end()
        assert world.server.finished(token).outcome == "completed"


def test_the_limit_holds_over_a_restart_of_the_worker(world: World) -> None:
    token = world.server.offer(spec={"limits": {"max_runtime_s": 0.6}})
    with Running(world):
        world.job()
    time.sleep(0.7)  # the job lives on
    with Running(world):
        finish = world.server.finished(token)
    assert (finish.outcome, finish.reason) == ("failed", TaskReason.TIMEOUT)
    assert len(world.jobs.all) == 1
    assert world.job().ended == FakeEnd("cancelled", TaskReason.ABORTED)
