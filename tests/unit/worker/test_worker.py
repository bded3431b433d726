"""The worker's loop against a server, jobs and files in memory, on a real folder."""

from __future__ import annotations

import errno
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.worker.fake_server import seen
from tests.unit.worker.fakes import FakeEnd, Running, World
from tunefleet.errors import ArtifactError, AuthError, ConflictError, InputError, MachineError
from tunefleet.executors.data_and_echo import EchoExecutor
from tunefleet.lifecycle.task import TaskReason
from tunefleet.schemas.job_folder import JobFolder, Shipped
from tunefleet.schemas.worker_link import InputRef
from tunefleet.worker.jobs import inline_tasks
from tunefleet.worker.outputs import deliver


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "results")


def test_light_tasks_go_from_offer_to_finish_without_an_accept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_tasks, "_LINGER_S", 30.0)  # however long eight of them take here
    tokens = [world.server.offer(f"t{i}", kind="echo", spec={"data": {"items": ["a", "b"]}}) for i in range(20)]
    with Running(world):
        finishes = [world.server.finished(token) for token in tokens]
    assert {f.outcome for f in finishes} == {"completed"}
    assert finishes[0].result == {
        "ok": True,
        "echo": {"data": {"items": ["a", "b"]}},
        "items": [{"index": 0, "output": "a"}, {"index": 1, "output": "b"}],
        "count": 2,
    }
    assert not any(request.accepts for request in world.server.exchanges)
    # 20 tasks in 8 slots: three batches; a batch is one exchange, not eight.
    assert len([request for request in world.server.exchanges if request.finishes]) <= 6
    assert not world.records(), "a light task leaves nothing on disk"


def test_a_clock_that_is_off_is_said_at_the_start(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.server.clock_ahead_s, before = -75.0, time.time()
    with Running(world):
        world.server.finished(world.server.offer("t1", kind="echo", spec={"data": {"items": ["a"]}}))
    assert "The clock of this machine is 75 s behind the server's" in caplog.text
    sent_at = world.server.registrations[0].sent_at
    assert sent_at is not None
    assert before <= sent_at <= time.time()


def test_a_job_is_on_disk_before_it_is_accepted_and_starts_after_the_ack(world: World) -> None:
    at_accept: list[tuple[int, int]] = []
    world.server.on_accept = lambda _: at_accept.append((len(world.records()), len(world.jobs.all)))
    token = world.server.offer()
    with Running(world):
        world.job().end()
        finish = world.server.finished(token)
    assert at_accept == [(1, 0)]
    assert seen(world.server.exchanges, token) == ["accept", "finish"]
    assert finish.outcome == "completed"
    assert finish.result["ok"] is True
    assert finish.cursors == {"a": 3}
    assert world.files.pushed == [("task-1", "final_lora", "adapter")]


def test_nothing_is_held_once_the_end_is_acknowledged(world: World) -> None:
    token = world.server.offer()
    with Running(world):
        world.job().end()
        world.server.finished(token)
        world.server.wait_for(lambda: not world.records())
    assert not JobFolder(world.results / "task-1").finish_json.exists()


def test_a_failed_job_uploads_nothing_and_keeps_its_words(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    token = world.server.offer()
    with Running(world):
        world.job().end(FakeEnd("failed", TaskReason.OUT_OF_MEMORY, "No memory.", "Traceback …"))
        finish = world.server.finished(token)
    assert (finish.outcome, finish.reason, finish.error, finish.detail) == (
        "failed",
        "out_of_memory",
        "No memory.",
        "Traceback …",
    )
    assert world.files.pushed == []
    assert [line for line in caplog.messages if line.startswith(("Accepted task", "Task task-1 ended"))] == [
        "Accepted task task-1 (train), attempt 1.",
        "Task task-1 ended: failed: No memory.",
    ]


def test_inputs_are_fetched_once_and_stand_in_the_job(world: World) -> None:
    inputs = {"data.path": InputRef(digest="ab" * 32, name="rows")}
    with Running(world):
        for attempt in (1, 2):
            token = world.server.offer(attempt=attempt, inputs=inputs)
            world.job(count=attempt).end()
            world.server.finished(token)
    assert world.jobs.all[0].job.inputs == {"data.path": str(world.results / ".inputs" / ("ab" * 32) / "rows.jsonl")}
    assert world.files.fetches == 1


@pytest.mark.parametrize("when", ["before_launch", "while_running", "while_delivering"])
def test_cancel_ends_the_job_and_is_reported(world: World, when: str) -> None:
    token = world.server.offer()
    if when == "before_launch":
        world.server.want(token, "cancel")
    with Running(world):
        if when == "while_running":
            world.job()
            world.server.want(token, "cancel")
        if when == "while_delivering":
            world.files.push_error = AuthError("not now")
            world.job().end()
            world.server.wait_for(lambda: world.server.exchanges[-1].want["job"] == 1)
            world.server.want(token, "cancel")
        finish = world.server.finished(token)
    assert finish.outcome == "cancelled"
    assert finish.cursors == ({} if when == "before_launch" else {"a": 3})
    assert when == "before_launch" or {r.generation for r in world.server.reached} == {1}
    assert len(world.jobs.all) <= 1


def test_a_dropped_attempt_ends_its_job_and_delivers_nothing(world: World) -> None:
    token = world.server.offer()
    with Running(world):
        job = world.job()
        world.server.void(token)
        world.server.wait_for(lambda: job.cancels)
        world.server.wait_for(lambda: not world.records())
    assert seen(world.server.exchanges, token) == ["accept"]
    assert world.files.pushed == []


def test_the_next_attempt_waits_for_the_end_of_the_dropped_one(world: World) -> None:
    first = world.server.offer(attempt=1)
    with Running(world):
        world.job()
        second = world.server.offer(attempt=2)
        world.server.void(first)
        world.job(count=2).end()
        assert world.server.finished(second).outcome == "completed"
    assert [job.job.attempt for job in world.jobs.all] == [1, 2]


def test_a_server_that_is_away_stops_nothing(world: World) -> None:
    token = world.server.offer()
    with Running(world):
        job = world.job()
        world.server.go_away()
        job.end()
        time.sleep(0.3)
        world.server.away = False
        assert world.server.finished(token).outcome == "completed"
    assert len(world.server.registrations) > 1
    assert world.server.registrations[-1].holding == (token,)


def test_a_light_task_that_ends_while_the_server_is_away_is_not_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(EchoExecutor, "run", lambda *_: {"waited": goes_on.wait(5)})
    token = world.server.offer(kind="echo", spec={"data": {"type": "list", "items": ["a"]}})
    with Running(world):
        world.server.wait_for(lambda: world.server.rows[token].state == "accepted")
        world.server.go_away()
        goes_on.set()
        time.sleep(0.3)
        world.server.away = False
        assert world.server.finished(token).outcome == "completed"
    assert world.server.registrations[-1].holding == (token,)


def test_a_finish_that_never_arrived_is_delivered_from_disk_by_the_next_worker(world: World) -> None:
    world.server.loses_finishes = True
    token = world.server.offer()
    with Running(world):
        job = world.job()
        job.end()
        world.server.wait_for(lambda: any(request.finishes for request in world.server.exchanges))
    assert job.folder.finish_json.exists()
    job.folder.responses_json.unlink()
    world.server.loses_finishes = False
    with Running(world):
        assert world.server.finished(token).result["ok"] is True
    assert len(world.jobs.all) == 1, "a training is not run again because its delivery failed"


def test_records_that_the_server_lacks_are_shipped_again(world: World) -> None:
    token = world.server.offer()
    world.server.behind_once = {token}
    with Running(world):
        job = world.job()
        shipped = Shipped(cursors={"a": 3}, offsets={"a": 99}, log_offset=5)
        job.folder.shipped_json.write_text(shipped.model_dump_json())
        job.end()
        world.server.finished(token)
    left = Shipped.model_validate_json(job.folder.shipped_json.read_bytes())
    assert (left.cursors, left.offsets, left.log_offset) == ({}, {}, 5)


def test_a_cancel_gets_through_once_a_full_disk_has_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunefleet.worker.jobs.command_dispatch._CANCEL_PAUSE_S", 0.01)
    token = world.server.offer()
    with Running(world) as running:
        job = world.job()
        cancel, tries = job.cancel, []

        def sometimes(grace_s: float) -> None:
            tries.append(grace_s)
            if len(tries) < 3:
                raise OSError(errno.ENOSPC, "No space left on device")
            cancel(grace_s)

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(job, "cancel", sometimes)
        monkeypatch.setattr(running.state, "keep", full)
        world.server.want(token, "cancel")
        assert world.server.finished(token).outcome == "cancelled"
    assert len(tries) == 3


def test_a_full_disk_at_the_very_end_keeps_no_attempt(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    token = world.server.offer()
    with Running(world):
        job = world.job()
        monkeypatch.setattr(job, "acknowledge", full)
        job.end()
        world.server.finished(token)
        world.server.wait_for(lambda: not world.records())
        world.server.wait_for(lambda: world.server.exchanges[-1].holding == ())


def test_a_full_disk_delays_the_journal_that_the_server_lacks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fulls = iter([OSError(errno.ENOSPC, "No space left on device")])
    write = deliver.write_synced

    def sometimes(*args: Any) -> None:
        for error in fulls:
            raise error
        write(*args)

    monkeypatch.setattr(deliver, "write_synced", sometimes)
    monkeypatch.setattr("tunefleet.worker.jobs.attempt._FULL_PAUSE_S", 0.01)
    token = world.server.offer()
    world.server.behind_once = {token}
    with Running(world):
        world.job().end()
        assert world.server.finished(token).outcome == "completed"


def test_more_offers_than_slots_are_left_to_others(world: World) -> None:
    world.server.offer("task-1")
    with Running(world):
        world.job()
        world.server.offer("task-2")
        time.sleep(0.1)
        assert [r.offer.task_id for r in world.records()] == ["task-1"]
        assert world.server.exchanges[-1].want["job"] == 0
        world.job().end()
        world.job(count=2)


def test_a_full_disk_means_no_accept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Running(world) as running:
        monkeypatch.setattr(running.state, "keep", full)
        token = world.server.offer()
        world.server.wait_for(lambda: len(world.server.exchanges) > 2)
    assert world.server.rows[token].state == "offered"
    assert seen(world.server.exchanges, token) == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InputError("The dataset has no rows."), "bad_input"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk_full"),
        (RuntimeError("a bug"), "bug"),
    ],
)
def test_a_job_that_cannot_start_fails_with_its_reason(world: World, error: Exception, reason: str) -> None:
    def refuse(_: object) -> None:
        raise error

    world.jobs.launch = refuse  # type: ignore[assignment, method-assign]
    token = world.server.offer()
    with Running(world):
        finish = world.server.finished(token)
    assert (finish.outcome, finish.reason) == ("failed", reason)
    assert str(error) in (finish.error or "")


def test_outputs_that_can_never_be_taken_fail_the_task(world: World) -> None:
    world.files.push_error = ArtifactError("A link leads out of the folder.")
    token = world.server.offer()
    with Running(world):
        world.job().end()
        finish = world.server.finished(token)
    assert (finish.outcome, finish.error) == ("failed", "A link leads out of the folder.")


@pytest.mark.parametrize("error", [MachineError("The disk of the server is full."), ConflictError("In a moment.")])
def test_a_server_that_cannot_take_an_output_now_gets_it_later(world: World, error: Exception) -> None:
    world.files.push_error = error
    token = world.server.offer()
    with Running(world):
        world.job().end()
        time.sleep(0.1)
        assert world.server.rows[token].finish is None
        world.files.push_error = None
        assert world.server.finished(token).outcome == "completed"
    assert world.files.pushed == [("task-1", "final_lora", "adapter")]


def test_a_job_without_a_result_fails(world: World) -> None:
    token = world.server.offer()
    with Running(world):
        job = world.job()
        job.ended = FakeEnd()
        finish = world.server.finished(token)
    assert finish.outcome == "failed"
    assert "responses.json" in (finish.error or "")


def test_an_unknown_kind_is_an_error_not_a_default(world: World) -> None:
    token = world.server.offer(kind="dream")
    with Running(world):
        finish = world.server.finished(token)
    assert (finish.outcome, finish.reason) == ("failed", "bug")
    assert "dream" in (finish.error or "")


def test_code_of_a_model_needs_the_owners_leave(world: World) -> None:
    spec = {"model": {"source": {"identifier": "some/model", "trust_remote_code": True}}}
    token = world.server.offer(spec=spec)
    with Running(world):
        finish = world.server.finished(token)
    assert finish.reason == "bad_input"
    assert "--allow-code" in (finish.error or "")


def test_a_job_over_its_time_is_ended(world: World) -> None:
    token = world.server.offer(spec={"limits": {"max_runtime_s": 0.05}})
    with Running(world):
        finish = world.server.finished(token)
    assert (finish.outcome, finish.reason) == ("failed", "timeout")
    assert "0.05" in (finish.error or "")


def test_a_command_reaches_the_job_and_its_outcome_the_server(world: World) -> None:
    token = world.server.offer()
    with Running(world):
        job = world.job()
        world.server.command(token, "save_checkpoint")
        world.server.wait_for(lambda: world.server.outcomes)
        job.end()
        world.server.finished(token)
    assert job.commands == ["save_checkpoint"]
    # Said again until an answer came, so the server sees it at least once and knows it by its id.
    told = dict.fromkeys((o.command_id, o.state) for o in world.server.outcomes)
    assert list(told) == [("cmd-1", "acknowledged"), ("cmd-1", "durable")]


def test_sigterm_leaves_the_job_alive_and_the_next_worker_adopts_it(world: World) -> None:
    token = world.server.offer()
    with Running(world):
        world.job()
        world.server.wait_for(lambda: world.server.rows[token].state == "accepted")
    assert world.jobs.all[0].ended is None
    with Running(world):
        world.server.wait_for(lambda: len(world.server.registrations) == 2)
        world.job().end()
        assert world.server.finished(token).outcome == "completed"
    assert len(world.jobs.all) == 1


def test_suspending_saves_ends_and_goes_on_in_the_same_attempt(world: World) -> None:
    token = world.server.offer()
    running = Running(world)
    running.__enter__()
    job = world.job()
    running.stop(suspend=True)
    assert job.commands == ["save_checkpoint"]
    assert job.ended is not None
    assert [r.suspended for r in world.records()] == [True]
    with Running(world):
        world.job(count=2).end()
        assert world.server.finished(token).outcome == "completed"
    first, second = world.jobs.all
    assert first.job.launch != second.job.launch
    assert first.job.attempt == second.job.attempt == 1


def test_a_job_that_has_paused_while_it_was_suspended_has_paused(world: World) -> None:
    token = world.server.offer()
    running = Running(world)
    running.__enter__()
    job = world.job()
    running.stop(suspend=True)
    job.ended = FakeEnd("paused", TaskReason.PAUSED)  # its pause was under way, and came first
    with Running(world):
        assert world.server.finished(token).outcome == "paused"
    assert len(world.jobs.all) == 1


def test_suspending_heeds_a_job_that_was_not_taken_up_yet(world: World) -> None:
    world.server.offer()
    with Running(world):
        job = world.job()
    assert job.ended is None
    running = Running(world)
    running.worker.stop(suspend=True)
    with running:
        running.thread.join(5)
    assert job.ended is not None
    assert [r.suspended for r in world.records()] == [True]


def test_after_a_reboot_a_killed_job_is_launched_again_in_its_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = world.server.offer()
    with Running(world):
        job = world.job()
    job.ended = FakeEnd("failed", TaskReason.KILLED)
    monkeypatch.setattr("tunefleet.trainer_control.process_identity.boot_id", lambda: "another boot")
    with Running(world):
        world.job(count=2).end()
        assert world.server.finished(token).outcome == "completed"


def test_a_key_that_is_refused_ends_the_worker(world: World) -> None:
    world.server.error = AuthError("The key is revoked.")
    with Running(world) as running:
        running.thread.join(5)
        assert isinstance(running.error, AuthError)


def test_who_is_stopped_says_goodbye_only_if_it_has_nothing_left(world: World) -> None:
    with Running(world):
        world.server.wait_for(lambda: world.server.exchanges)
    assert [said.leaves for said in world.server.exchanges][-1]
    world.server.offer()
    with Running(world):
        world.job()
    assert not world.server.exchanges[-1].leaves
    assert not any(said.leaves for said in world.server.exchanges if said.holding)


def test_drain_delivers_what_is_held_and_takes_nothing(world: World) -> None:
    token = world.server.offer()
    with Running(world):
        job = world.job()
    world.server.offer("task-2")
    with Running(world, drain=True) as running:
        world.server.wait_for(lambda: len(world.server.registrations) == 2)
        job.end()
        world.server.finished(token)
        running.thread.join(5)
        assert not running.thread.is_alive()
    assert world.server.rows["att-task-2-1.secret"].state == "offered"


def test_an_offer_that_cannot_be_read_fails_with_what_is_wrong(world: World) -> None:
    token = world.server.offer(unreadable="spec must be a mapping")
    with Running(world):
        finish = world.server.finished(token)
    assert (finish.outcome, finish.reason) == ("failed", TaskReason.BUG)
    assert finish.error is not None
    assert "cannot read the server's offer: spec must be a mapping." in finish.error
    assert not world.records()
