"""A light task that waits for its receiver takes no slot, and can be cancelled; the log tells of each."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.unit.worker.fakes import Running, World
from tunefleet.client.external.interrupt import CancelToken
from tunefleet.errors import InputError
from tunefleet.executors.base import LightExecutor
from tunefleet.executors.data_and_echo import EchoExecutor
from tunefleet.schemas.worker_link import Desired, MergedTask, Offer
from tunefleet.worker.jobs.inline_tasks import LightTasks
from tunefleet.worker.outbox import Outbox

ITEMS = {"data": {"type": "list", "items": ["a"]}}


def test_a_cancel_from_the_server_ends_a_task_whose_code_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(EchoExecutor, "run", lambda *_: {"waited": goes_on.wait(30)})
    world = World(tmp_path / "results")
    token = world.server.offer(kind="echo", spec=ITEMS)
    with Running(world):
        world.server.wait_for(lambda: world.server.rows[token].state == "accepted")
        world.server.want(token, "cancel")
        assert world.server.finished(token).outcome == "cancelled"
        world.server.wait_for(lambda: world.server.reached)
        goes_on.set()
        other = world.server.offer("task-2", kind="echo", spec=ITEMS)
        assert world.server.finished(other).outcome == "completed"
    said = [finish for request in world.server.exchanges for finish in request.finishes if finish.token == token]
    assert {finish.outcome for finish in said} == {"cancelled"}


class Picky(LightExecutor):
    """Fails, or waits until it may go on, as the item says."""

    kind = "echo"

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = threading.Event()

    def run(self, offer: Offer) -> dict[str, Any]:
        if offer.name == "bad":
            raise InputError("There is nothing to echo.")
        if offer.name == "slow":
            self.begun.set()
            assert self.go_on.wait(60)
        return {}


class Stoppable(Picky):
    """Waits until it is told to stop."""

    def run_until(self, offer: Offer, stop: CancelToken) -> dict[str, Any]:
        stop.pause(60)
        return {}


def offered(name: str) -> Offer:
    return Offer(token=name, task_id=f"task-{name}", workflow_id="w", attempt=1, kind="echo", name=name, spec={})


def test_code_that_goes_on_after_its_cancel_keeps_its_slot_until_it_ends(tmp_path: Path) -> None:
    outbox, picky = Outbox("w-1", "session"), Picky()
    light, wait_for = LightTasks(outbox, 1), World(tmp_path).server.wait_for
    light.run([(picky, offered("slow"))])
    assert picky.begun.wait(60)
    light.apply_desired(Desired(token="slow", action="cancel", generation=1))
    assert (light.free_slots, light.busy) == (0, False), "the server is told of the end, and of no room"
    with outbox.changed:
        told = outbox.draft(holding=(), want={}, wait_s=0).version
    picky.go_on.set()
    wait_for(lambda: light.free_slots == 1)
    wait_for(lambda: outbox.draft(holding=(), want={}, wait_s=0).version > told)
    light.close()


def test_a_task_that_was_cancelled_before_there_was_room_is_not_begun(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    outbox, picky = Outbox("w-1", "session"), Picky()
    light, wait_for = LightTasks(outbox, 1), World(tmp_path).server.wait_for
    light.run([(picky, offered("slow"))])
    assert picky.begun.wait(60)
    light.run([(Picky(), offered("bad"))])
    light.apply_desired(Desired(token="bad", action="cancel", generation=1))
    picky.go_on.set()
    wait_for(lambda: "Task task-bad was cancelled or dropped before it started." in caplog.messages)
    wait_for(lambda: light.free_slots == 1)
    light.close()


@pytest.mark.parametrize("how", ["cancel", "drop", "close"])
def test_code_that_can_be_ended_is_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str) -> None:
    outbox = Outbox("w-1", "session")
    light = LightTasks(outbox, 1)
    light.run([(Stoppable(), offered("slow"))])
    match how:
        case "cancel":
            light.apply_desired(Desired(token="slow", action="cancel", generation=1))
        case "drop":
            light.drop("slow")
        case _:
            light.close()
    light._pool.shutdown(wait=True)  # its thread ends
    said = [finish.outcome for finish in outbox.draft(holding=(), want={}, wait_s=0).request.finishes]
    assert said == (["cancelled"] if how == "cancel" else [])
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_log_has_a_line_of_each_light_task_and_how_it_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    outbox, picky = Outbox("w-1", "session"), Picky()
    light = LightTasks(outbox, 8)
    names = ("good", "bad", "slow")
    offers = [
        Offer(token=n, task_id=f"task-{n}", workflow_id="w", attempt=1, kind="echo", name=n, spec={}) for n in names
    ]
    merged = MergedTask(token="child", task_id="task-child", workflow_id="w", attempt=1, name="child", spec={})
    offers[0] = offers[0].model_copy(update={"merged": (merged,)})
    wait_for = World(tmp_path).server.wait_for
    light.run([(picky, offer) for offer in offers])
    assert "Accepted task task-slow (echo), attempt 1." in caplog.messages
    light.apply_desired(Desired(token="slow", action="cancel", generation=1))
    picky.go_on.set()
    wait_for(lambda: len([line for line in caplog.messages if " ended after " in line]) == 4)
    light.close()
    told = sorted(re.sub(r"after [0-9.]+ s", "after", line) for line in caplog.messages if " ended " in line)
    assert told == [
        "Task task-bad (echo) ended after: failed: There is nothing to echo.",
        "Task task-child (echo) ended after: failed: The run of task-good (good), which also ran task-child "
        "(child), returned no result for it.",
        "Task task-good (echo) ended after: completed",
        "Task task-slow (echo) ended after: cancelled or dropped",
    ]
