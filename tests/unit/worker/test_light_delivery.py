"""A light task that waits for its receiver takes no slot, and can be cancelled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.worker.fakes import Running, World
from tests.unit.worker.receiver import Receiver, receiving
from tunefleet.executors.echo import EchoExecutor
from tunefleet.wire.link import Desired, Finish, Offer
from tunefleet.worker import light as module
from tunefleet.worker.light import LightTasks
from tunefleet.worker.outbox import Outbox
from tunefleet.worker.transfers import Transfers

ITEMS = {"data": {"type": "list", "items": ["a"]}}


class Site:
    """Light tasks with one slot, an outbox that nobody reads, and a receiver that takes nothing."""

    def __init__(self, results: Path, receiver: Receiver) -> None:
        receiver.answers = [503] * 99
        self.receiver = receiver
        self.outbox = Outbox("w-1", "session")
        self.light = LightTasks(self.outbox, 1, transfers=Transfers(folders=(results,), url_allow=("127.0.0.1",)))
        self.wait_for = World(results).server.wait_for

    def run(self, token: str, *, delivers: bool) -> None:
        wanted = {"type": "http", "url": f"{self.receiver.url}/{token}", "retries": 9, "retryBackoffSec": 3600}
        spec = {**ITEMS, "output": {"destination": wanted}} if delivers else ITEMS
        offer = Offer(token=token, task_id=token, workflow_id="w", attempt=1, kind="echo", name="n", spec=spec)
        self.light.run([(EchoExecutor(), offer)])
        if delivers:
            self.wait_for(lambda: [each for each in self.receiver.seen if each.path == f"/{token}"])

    def end(self, token: str) -> Finish:
        self.wait_for(lambda: token in self.outbox.finishing)
        with self.outbox.changed:
            found = self.outbox.draft(holding=(), want={}, wait_s=0).request.finishes
        return next(finish for finish in found if finish.token == token)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with receiving() as receiver:
        made = Site(tmp_path, receiver)
        yield made
        made.light.close()


def test_a_delivery_that_waits_takes_no_slot(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DELIVERIES", 2)
    for token in ("one", "two"):
        site.run(token, delivers=True)
        assert site.light.free_slots == 1
    assert set(site.light.holding) == {"one", "two"}, "the server knows that they are not done"
    site.run("quick", delivers=False)
    assert site.end("quick").outcome == "completed"
    site.run("three", delivers=True)
    assert site.light.free_slots == 0, "threads that wait are not made without end"


def test_a_cancel_ends_a_delivery_that_waits(site: Site) -> None:
    site.run("one", delivers=True)
    site.light.heed(Desired(token="one", action="cancel", generation=1))
    assert site.end("one").outcome == "cancelled"
    assert site.light.holding == ()
    site.light._pool.shutdown(wait=True)  # its thread waits for nothing any more
    assert site.end("one").outcome == "cancelled"


def test_a_task_that_was_taken_away_stops_delivering(site: Site) -> None:
    site.run("one", delivers=True)
    site.light.drop("one")
    site.light._pool.shutdown(wait=True)
    assert site.outbox.finishing == ()
    assert not site.light.busy


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
