"""What the worker does by itself: start a job again that stands still, or fail it, or make way, over any restart."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.worker.fakes import FakeEnd, FakeJob, Running, World
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime.gpu.info import GpuFigures, GpuProcess
from tunefleet.runtime.monitor import guard, preemption
from tunefleet.runtime.monitor.preemption import GpuContentionMonitor
from tunefleet.schemas.job_folder import JobStatus

STILL = {"limits": {"stall_after_s": 0.05}}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(guard, "_CHECK_S", 0.05)
    return World(tmp_path)


def _stalled(world: World) -> bool:
    return any(exchange.stalled for exchange in world.server.exchanges[-1:])


def test_a_stall_is_shown_and_by_default_nothing_else_happens(world: World) -> None:
    token = world.server.offer(spec=STILL)
    with Running(world):
        job = world.job()
        world.server.wait_for(lambda: _stalled(world))
        assert world.server.exchanges[-1].stalled[token] > 0
        _record(job)
        world.server.wait_for(lambda: not _stalled(world))
        job.end()
        assert world.server.finished(token).outcome == "completed"
    assert len(world.jobs.all) == 1


def _record(job: FakeJob) -> None:
    journal = job.folder.journal_dir / f"{job.job.launch}.jsonl"
    journal.parent.mkdir(parents=True, exist_ok=True)
    with journal.open("a") as file:
        file.write('{"seq": 0}\n')


def test_a_job_that_stands_still_again_and_again_fails_with_its_reason(world: World) -> None:
    token = world.server.offer(spec={**STILL, "on_stall": "restart"})
    with Running(world):
        world.job(count=2)
    with Running(world):  # what was counted is on disk
        finish = world.server.finished(token)
    assert (finish.outcome, finish.reason) == ("failed", TaskReason.STALLED)
    assert "No journal record for" in str(finish.error)
    assert "restarted 3 times" in str(finish.error)
    launches = [job.job.launch for job in world.jobs.all]
    assert len(set(launches)) == len(launches) == 1 + guard.MAX_RESTARTS
    assert {job.job.attempt for job in world.jobs.all} == {1}
    assert all(job.ended == FakeEnd("failed", TaskReason.KILLED) for job in world.jobs.all)


def test_on_stall_fail_fails_at_once(world: World) -> None:
    token = world.server.offer(spec={**STILL, "on_stall": "fail"})
    with Running(world):
        finish = world.server.finished(token)
    assert finish.reason == TaskReason.STALLED
    assert len(world.jobs.all) == 1


def test_a_worker_that_is_killed_before_it_has_killed_goes_on_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = world.server.offer(spec={**STILL, "on_stall": "fail"})
    monkeypatch.setattr(FakeJob, "kill", lambda self: None)  # as if the worker had died just before
    with Running(world):
        world.server.wait_for(lambda: world.records() and world.records()[0].watched.interruption is not None)
    job = world.job()
    assert job.ended is None
    job.ended = FakeEnd("failed", TaskReason.KILLED)
    with Running(world):
        assert world.server.finished(token).reason == TaskReason.STALLED


class YieldingJob(FakeJob):
    """Pauses when it is told to; a loading one refuses."""

    def command(self, name: str, data: object = None, command_id: str | None = None):  # type: ignore[no-untyped-def]
        reply = super().command(name, None, command_id)
        if name == "pause":
            self.ended = FakeEnd("paused", TaskReason.PAUSED)
        return reply

    def status(self) -> JobStatus | None:
        return JobStatus(state="running", phase="training", at=0.0, pid=1)


class Shared:
    """A worker on a machine with one GPU that people use."""

    def __init__(self, world: World, tmp_path: Path, *, idle_s: float = 0.4) -> None:
        self.there: list[GpuProcess] = []
        self.gpu_monitor = GpuContentionMonitor(
            tmp_path / "gpus",
            idle_s=idle_s,
            read=lambda: [GpuFigures(0, "GPU-a", "Fake", 1, 2, processes=(*self.there,))],
        )
        self.gpu_monitor.look()
        self.running = Running(world)
        self.running.worker._context = self.running.site = replace(
            self.running.site, gpu_monitor=self.gpu_monitor, makes_way=True, gpus=lambda _: ("GPU-a",)
        )


def test_a_job_that_has_made_way_can_be_cancelled(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption, "EVERY_S", 0.05)
    monkeypatch.setattr("tests.unit.worker.fakes.FakeJob", YieldingJob)
    shared = Shared(world, tmp_path, idle_s=1000)
    with shared.running:
        token = world.server.offer()
        job = world.job()
        shared.there = [GpuProcess(os.getppid(), 1 << 30)]
        world.server.wait_for(lambda: job.ended is not None)
        world.server.want(token, "cancel")
        assert world.server.finished(token).outcome == "cancelled"
    assert len(world.jobs.all) == 1
