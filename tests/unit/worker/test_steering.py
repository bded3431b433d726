"""Commands and pauses on their way to a job, against a job that takes its time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.worker.fakes import FakeEnd, FakeJob, Running, World
from tunefleet.errors import ConflictError, InputError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.schemas.control import CommandState, ControlReply
from tunefleet.schemas.job_folder import Job, JobFolder, JobStatus
from tunefleet.schemas.worker_link import pause_id
from tunefleet.worker.jobs import command_dispatch


class SteeredJob(FakeJob):
    """A job that loads first, and brings commands to their end when a test says so."""

    def __init__(self, job: Job, folder: JobFolder) -> None:
        super().__init__(job, folder)
        self.loading = True
        self.asked = 0
        self.states: dict[str, CommandState] = {}

    def command(self, name: str, data: dict[str, Any] | None = None, command_id: str | None = None) -> ControlReply:
        self.asked += 1
        if self.loading:
            raise ConflictError("It takes no commands now: it is starting (loading).")
        if name == "dance":
            raise InputError("There is no command dance.")
        assert command_id is not None
        self.states.setdefault(command_id, CommandState(command_id=command_id, command=name, state="pending"))
        return super().command(name, data, command_id)

    def command_state(self, command_id: str) -> CommandState:
        return self.states[command_id]

    def become(self, command_id: str, state: str, **more: Any) -> None:
        """Let something become of a command."""
        self.states[command_id] = self.states[command_id].model_copy(update={"state": state, **more})


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("tests.unit.worker.fakes.FakeJob", SteeredJob)
    return World(tmp_path / "results")


def steered(world: World) -> SteeredJob:
    job = world.job()
    assert isinstance(job, SteeredJob)
    return job


def states(world: World, command_id: str) -> list[str]:
    return list(dict.fromkeys(o.state for o in world.server.outcomes if o.command_id == command_id))


def test_a_pause_is_asked_for_until_the_job_takes_it_and_then_followed(world: World) -> None:
    token = world.server.offer()
    command_id = pause_id("task-1", 1, 1)
    with Running(world):
        job = steered(world)
        world.server.want(token, "pause")
        world.server.wait_for(lambda: job.asked >= 2)
        assert not world.server.reached, "it is not on its way before the job has it"
        job.loading = False
        world.server.wait_for(lambda: world.server.reached)
        assert job.commands == ["pause"]
        assert world.records()[0].commands[0].command_id == command_id, "a next process follows it on"
        job.become(command_id, "applied", step=7)
        world.server.wait_for(lambda: "applied" in states(world, command_id))
        job.become(command_id, "durable", checkpoint="checkpoint-7")
        job.end(FakeEnd("paused", TaskReason.PAUSED))
        finish = world.server.finished(token)
    assert (finish.outcome, finish.reason) == ("paused", "paused")
    assert states(world, command_id) == ["acknowledged", "applied", "durable"]
    last = world.server.outcomes[-1]
    assert (last.step, last.checkpoint) == (7, "checkpoint-7")
    assert (world.server.reached[-1].token, world.server.reached[-1].generation) == (token, 1)


def test_a_pause_that_is_taken_back_is_asked_for_no_more(world: World) -> None:
    token = world.server.offer()
    with Running(world):
        job = steered(world)
        world.server.want(token, "pause")
        world.server.wait_for(lambda: job.asked >= 1)
        world.server.want(token, "run", 2)
        world.server.wait_for(lambda: [each.generation for each in world.server.reached] == [2])
        job.loading = False
        world.server.want(token, "pause", 3)
        world.server.wait_for(lambda: job.commands)
        assert set(job.states) == {pause_id("task-1", 1, 3)}
        # The job has this one: the worker does not say that it runs on.
        world.server.want(token, "run", 4)
        job.become(pause_id("task-1", 1, 3), "durable", step=7, checkpoint="checkpoint-7")
        job.end(FakeEnd("paused", TaskReason.PAUSED))
        assert world.server.finished(token).outcome == "paused"
    assert 4 not in [each.generation for each in world.server.reached]


def test_a_job_whose_worker_was_interrupted_in_the_middle_of_a_pause_is_paused(world: World) -> None:
    token = world.server.offer()
    command_id = pause_id("task-1", 1, 1)
    running = Running(world)
    running.__enter__()
    job = steered(world)
    job.loading = False
    world.server.want(token, "pause")
    world.server.wait_for(lambda: "acknowledged" in states(world, command_id))
    # The trainer is ended by the worker before it comes to the pause, and says so.
    running.stop(suspend=True)
    job.become(command_id, "failed", message="the training was aborted")
    with Running(world):
        world.server.want(token, "pause")
        finish = world.server.finished(token)
    assert (finish.outcome, finish.reason) == ("paused", "paused")
    assert len(world.jobs.all) == 1, "another launch might have trained to the end before it was asked"
    assert "failed" not in states(world, command_id)


def test_a_command_that_a_restart_found_under_way_is_followed_on_and_not_sent_again(world: World) -> None:
    token = world.server.offer()
    with Running(world):
        job = steered(world)
        job.loading = False
        world.server.command(token, "save_checkpoint")
        world.server.wait_for(lambda: "acknowledged" in states(world, "cmd-1"))
    job.become("cmd-1", "durable", step=3, checkpoint="checkpoint-3")
    with Running(world):
        world.server.wait_for(lambda: "durable" in states(world, "cmd-1"))
        assert job.commands == ["save_checkpoint"]
        world.server.wait_for(lambda: not world.records()[0].commands)
        job.end()
        world.server.finished(token)


def test_a_command_that_the_job_does_not_know_fails_and_one_that_comes_too_late_is_left_to_the_server(
    world: World,
) -> None:
    token = world.server.offer()
    with Running(world):
        job = steered(world)
        job.loading = False
        world.server.command(token, "dance")
        world.server.wait_for(lambda: states(world, "cmd-1") == ["failed"])
        job.loading = True
        world.server.rows[token].commands.clear()
        world.server.want(token, "pause", generation=2)
        world.server.wait_for(lambda: job.asked >= 3)
        job.end()
        assert world.server.finished(token).outcome == "completed", "it was done before it could be paused"
    assert not states(world, pause_id("task-1", 1, 2))


@pytest.mark.parametrize("phase", ["training", "running"])
def test_a_job_that_is_at_work_and_takes_no_command_for_long_cannot_be_paused(
    world: World, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    monkeypatch.setattr(command_dispatch, "_UNRESPONSIVE_S", 0.3)
    status = JobStatus(state="running", phase=phase, at=time.time(), pid=1)
    monkeypatch.setattr(SteeredJob, "status", lambda self: status)
    token = world.server.offer()
    with Running(world):
        job = steered(world)
        world.server.want(token, "pause")
        world.server.wait_for(lambda: states(world, pause_id("task-1", 1, 1)) == ["failed"])
        # Told right after the outcome: the wish is not repeated for ever.
        world.server.wait_for(lambda: bool(world.server.reached))
        assert "not listening" in str(world.server.outcomes[-1].message)
        assert job.ended is None, "a training is never lost for a pause"
        job.end()
        world.server.finished(token)
