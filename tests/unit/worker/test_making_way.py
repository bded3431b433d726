"""A worker whose machine is taken away soon: what it holds is saved and given back, and it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.worker.fakes import FakeEnd, FakeJob, Running, World
from tunefleet.errors import MachineError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.schemas.worker_link import InputRef
from tunefleet.settings import WorkerSettings
from tunefleet.worker.ephemeral import EphemeralWorkerOptions
from tunefleet.worker.jobs.job_run import PreemptedEnd, WorkerPreemption
from tunefleet.worker.mailbox import Mailbox

PAUSED = FakeEnd("paused", TaskReason.PAUSED)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "results")


def ended(running: Running) -> None:
    """Wait until the worker has ended by itself."""
    running.thread.join(10.0)
    assert not running.thread.is_alive()


def asked_to_pause(world: World) -> FakeJob:
    job = world.job()
    world.server.wait_for(lambda: job.commands)
    assert job.commands == ["pause"]
    return job


def test_what_runs_is_paused_and_given_back_and_the_worker_ends(world: World) -> None:
    token = world.server.offer()
    with Running(world) as running:
        world.job()
        running.worker.make_way()
        asked_to_pause(world).end(PAUSED)
        finish = world.server.finished(token)
        ended(running)
    assert (finish.outcome, finish.reason, finish.error) == ("released", "released", None)
    assert (running.worker.made_way, running.worker.left, running.error) == (True, True, None)
    assert not world.records()


@pytest.mark.parametrize("end", [FakeEnd("failed", TaskReason.KILLED), FakeEnd("failed", TaskReason.CRASHED)])
def test_a_job_that_has_nothing_to_save_is_given_back_too(world: World, end: FakeEnd) -> None:
    token = world.server.offer()
    with Running(world) as running:
        world.job()
        running.worker.make_way()
        asked_to_pause(world).end(end)
        assert world.server.finished(token).outcome == "released"
        ended(running)


def test_a_job_that_comes_to_its_end_meanwhile_is_delivered(world: World) -> None:
    token = world.server.offer()
    with Running(world) as running:
        world.job()
        running.worker.make_way()
        asked_to_pause(world).end()
        assert world.server.finished(token).outcome == "completed"
        ended(running)
    assert world.files.pushed == [("task-1", "final_lora", "adapter")]


def test_a_job_that_fails_by_itself_has_failed(world: World) -> None:
    token = world.server.offer()
    with Running(world) as running:
        world.job()
        running.worker.make_way()
        asked_to_pause(world).end(FakeEnd("failed", TaskReason.OUT_OF_MEMORY, "No memory."))
        assert world.server.finished(token).outcome == "failed"
        ended(running)


def test_what_is_cancelled_meanwhile_is_cancelled(world: World) -> None:
    token = world.server.offer()
    with Running(world) as running:
        world.job()
        running.worker.make_way()
        asked_to_pause(world)
        world.server.want(token, "cancel")
        assert world.server.finished(token).outcome == "cancelled"
        ended(running)


def test_what_was_not_launched_yet_is_not_launched_any_more(world: World) -> None:
    token = world.server.offer(inputs={"data.path": InputRef(digest="ab" * 32, name="rows")})
    with Running(world) as running:
        fetch, told = world.files.fetch_artifact, running.worker.make_way

        def meanwhile(digest: str, dest: Path, **_: object) -> Path:
            told()
            return fetch(digest, dest)

        world.files.fetch_artifact = meanwhile  # type: ignore[method-assign]
        finish = world.server.finished(token)
        ended(running)
    assert (finish.outcome, finish.error) == ("released", "Its machine was preempted before the launch.")
    assert world.jobs.all == []
    assert running.worker.made_way


def test_nothing_new_is_taken(world: World) -> None:
    first = world.server.offer("t1")
    with Running(world, slots=2) as running:
        job = world.job()
        running.worker.make_way()
        asked_to_pause(world)
        world.server.offer("t2")
        world.server.wait_for(lambda: world.server.exchanges[-1].want == {"job": 0, "light": 0})
        job.end(PAUSED)
        world.server.finished(first)
        ended(running)
    assert len(world.jobs.all) == 1


def test_who_has_nothing_ends_at_once(world: World) -> None:
    with Running(world) as running:
        world.server.wait_for(lambda: world.server.exchanges)
        running.worker.make_way()
        ended(running)
    assert (running.worker.made_way, running.worker.left) == (True, True)


def test_a_server_that_cannot_be_told_knows_the_worker_by_its_folder_still(world: World) -> None:
    with Running(world) as running:
        world.server.wait_for(lambda: world.server.exchanges)
        world.server.go_away()
        running.worker.make_way()
        ended(running)
    assert (running.worker.made_way, running.worker.left) == (True, False)


def test_patience_ends_a_worker_to_which_no_task_comes(world: World) -> None:
    once = EphemeralWorkerOptions.of("task-1", WorkerSettings(nodes_patience_s=0.2))
    with Running(world) as running:
        once.watch(running.worker)
        ended(running)
    assert isinstance(running.error, MachineError)
    assert str(running.error).startswith("No task arrived for 0.2 s: releasing the node.")
    assert "tunefleet why task-1" in (running.error.hint or "")
    assert not running.worker.made_way, "asking for nodes again would be no better"


def test_patience_with_a_server_that_does_not_answer_ends_too(world: World) -> None:
    once = EphemeralWorkerOptions.of("task-1", WorkerSettings(nodes_patience_s=0.2))
    world.server.away = True
    with Running(world) as running:
        once.watch(running.worker)
        ended(running)
    assert str(running.error).startswith("The server did not respond for 0.2 s: releasing the node.")
    assert "TUNEFLEET_NODES_URL" in (getattr(running.error, "hint", None) or "")


def test_a_worker_with_a_task_is_not_idle(world: World) -> None:
    once = EphemeralWorkerOptions.of("task-1", WorkerSettings(nodes_patience_s=0.5))
    token = world.server.offer()
    with Running(world) as running:
        once.watch(running.worker)
        job = world.job()
        running.worker.over.wait(1.5)
        assert running.error is None
        job.end()
        assert world.server.finished(token).outcome == "completed"
        ended(running)
    assert isinstance(running.error, MachineError), "and then it waits anew"


def test_a_job_that_was_killed_before_it_could_be_told_is_given_back_too() -> None:
    mailbox, killed = Mailbox(), FakeEnd("failed", TaskReason.KILLED)
    leaving = WorkerPreemption(mailbox, leads=True)
    assert leaving.left(killed) is None
    mailbox.notify_preempted()
    assert leaving.left(killed) == PreemptedEnd()
    assert leaving.left(FakeEnd("failed", TaskReason.CRASHED)) is None
