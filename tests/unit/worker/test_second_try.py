"""A job that failed for want of memory is launched again within its attempt, with half the batch."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.worker.fakes import FakeEnd, Running, World
from tunefleet.lifecycle.task import TaskReason

SPEC = {
    "taskType": "lora_sft",
    "model": {"source": {"identifier": "m"}},
    "data": {"prompts": ["a"]},
    "training": {"batch_size": 2},
}
OOM = FakeEnd("failed", TaskReason.OUT_OF_MEMORY, "No memory.")


def test_an_attempt_goes_on_with_half_the_batch_and_ends_once(tmp_path: Path) -> None:
    world = World(tmp_path / "results")
    token = world.server.offer(spec=SPEC)
    with Running(world):
        first = world.job()
        first.end(OOM)
        second = world.job(count=2)
        assert second.job.launch != first.job.launch
        assert second.job.attempt == first.job.attempt
        overrides = json.loads(second.folder.overrides_json.read_text())
        assert (overrides["batch_size"], overrides["gradient_accumulation_steps"]) == (1, 2)
        second.end(OOM)
        finish = world.server.finished(token)
    assert (finish.outcome, finish.reason) == ("failed", TaskReason.OUT_OF_MEMORY)
    assert len(world.jobs.all) == 2


def test_a_bug_is_the_servers_to_try_again(tmp_path: Path) -> None:
    world = World(tmp_path / "results")
    token = world.server.offer(spec=SPEC)
    with Running(world):
        world.job().end(FakeEnd("failed", TaskReason.BUG, "KeyError"))
        assert world.server.finished(token).reason == TaskReason.BUG
    assert len(world.jobs.all) == 1
