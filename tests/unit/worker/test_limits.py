"""The run clock counts what an attempt's jobs ran, whatever wall clock, worker and machine do."""

from __future__ import annotations

import time

import pytest

from tests.unit.worker.fakes import FakeEnd, Running, World
from tunefleet.lifecycle.task import TaskReason
from tunefleet.worker.limits import RunClock, Runtime


class Machine:
    """A fake machine: its monotonic clock and its boot."""

    def __init__(self) -> None:
        self.now, self.boot = 1000.0, "boot-1"

    def runtime(self, clock: RunClock, limit_s: float | None = 100.0) -> Runtime:
        """What a worker's process builds from what is on disk."""
        return Runtime(clock, limit_s, now=lambda: self.now, boot=lambda: self.boot)


def test_it_goes_on_while_the_worker_is_away_and_stands_while_no_job_lives() -> None:
    machine = Machine()
    noted = machine.runtime(RunClock()).start()
    machine.now += 60
    runtime = machine.runtime(RunClock.model_validate_json(noted.model_dump_json()))
    assert runtime.ran_s == 60
    noted = runtime.stop()  # it makes way
    machine.now += 10_000
    runtime = machine.runtime(noted)
    assert (runtime.ran_s, runtime.exceeded) == (60, False)
    runtime.start()
    machine.now += 41
    assert runtime.exceeded


def test_of_another_boot_what_was_noted_last_counts() -> None:
    machine = Machine()
    runtime = machine.runtime(RunClock())
    runtime.start()
    machine.now += 61
    assert runtime.worth_noting
    noted = runtime.start()
    machine.now += 30
    machine.boot, machine.now = "boot-2", 5.0
    runtime = machine.runtime(noted)
    assert runtime.ran_s == 61
    runtime.start()
    machine.now += 10
    assert runtime.ran_s == 71


def test_without_a_limit_nothing_is_exceeded_or_noted() -> None:
    machine = Machine()
    runtime = machine.runtime(RunClock(), None)
    runtime.start()
    machine.now += 1e6
    assert not runtime.exceeded
    assert not runtime.worth_noting


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
