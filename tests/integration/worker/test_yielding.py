"""A job makes way for another person's process, and continues when that process has ended."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.worker.fakes import World
from tests.unit.worker.test_guard import Shared, YieldingJob, _record
from tunefleet.runtime.gpu.info import GpuProcess
from tunefleet.runtime.monitor import guard, preemption


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(guard, "_CHECK_S", 0.05)
    return World(tmp_path)


@pytest.fixture
def somebody() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.kill()
    process.communicate()


def test_a_job_makes_way_and_comes_back_with_its_attempt(
    world: World, tmp_path: Path, somebody: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption, "EVERY_S", 0.05)
    monkeypatch.setattr("tests.unit.worker.fakes.FakeJob", YieldingJob)
    shared = Shared(world, tmp_path)
    with shared.running:
        token = world.server.offer()
        job = world.job()
        _record(job)
        shared.there = [GpuProcess(somebody, 1 << 30)]
        world.server.wait_for(lambda: job.ended is not None)
        assert job.commands == ["pause"]
        world.server.wait_for(lambda: world.server.exchanges[-1].want.get("job") == 0)
        assert token in world.server.exchanges[-1].holding
        assert len(world.server.registrations) > 1, "the GPU is shown as in use"
        journal = job.folder.journal_dir / f"{job.job.launch}.jsonl"
        world.server.wait_for(lambda: len(journal.read_text().splitlines()) == 3)
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
        assert (lines[-2]["name"], lines[-1]["phase"]) == ("job.yielded", "yielded")
        assert f"pid {somebody}" in lines[-2]["message"]
    # The worker goes and comes back meanwhile.
    shared = Shared(world, tmp_path)
    shared.there = [GpuProcess(somebody, 1 << 30)]
    shared.gpu_monitor.look()
    with shared.running:
        world.server.wait_for(lambda: len(world.server.registrations) > 1)
        assert len(world.jobs.all) == 1
        shared.there = []
        again = world.job(count=2)
        assert (again.job.attempt, again.job.gpus) == (1, ("GPU-a",))
        again.end()
        assert world.server.finished(token).outcome == "completed"
