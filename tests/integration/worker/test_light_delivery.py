"""The result of a light task waits for the receiver of its delivery."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.worker.receiver import Receiver, receiving
from tests.unit.worker.fakes import World
from tests.unit.worker.test_light_delivery import ITEMS
from tunefleet.executors.data_and_echo import EchoExecutor
from tunefleet.schemas.worker_link import Desired, ExchangeRequest, Finish, Offer
from tunefleet.worker.jobs import inline_tasks as module
from tunefleet.worker.jobs.inline_tasks import LightTasks
from tunefleet.worker.outbox import Outbox
from tunefleet.worker.transfers import Transfers


class WorkerContext:
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

    def said(self) -> ExchangeRequest:
        with self.outbox.changed:
            return self.outbox.draft(holding=(), want={}, wait_s=0).request

    def end(self, token: str) -> Finish:
        self.wait_for(lambda: token in self.outbox.finishing)
        return next(finish for finish in self.said().finishes if finish.token == token)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[WorkerContext]:
    with receiving() as receiver:
        made = WorkerContext(tmp_path, receiver)
        yield made
        made.light.close()


def test_a_delivery_that_waits_takes_no_slot(site: WorkerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DELIVERIES", 2)
    for token in ("one", "two"):
        site.run(token, delivers=True)
        assert site.light.free_slots == 1
    assert set(site.light.holding) == {"one", "two"}, "the server knows that they are not done"
    assert set(site.light.delivering) == {"one", "two"}, "and that they take none"
    site.wait_for(lambda: set(site.said().delivering) == {"one", "two"})
    told = site.said().delivering.values()
    assert all(
        why.startswith("http://127.0.0.1") and why.endswith(" Delivery of the result is retried.") for why in told
    )
    site.run("quick", delivers=False)
    assert site.end("quick").outcome == "completed"
    site.run("three", delivers=True)
    assert site.light.free_slots == 0, "threads that wait are not made without end"


def test_a_cancel_ends_a_delivery_that_waits(site: WorkerContext) -> None:
    site.run("one", delivers=True)
    site.light.apply_desired(Desired(token="one", action="cancel", generation=1))
    assert site.end("one").outcome == "cancelled"
    assert site.light.holding == ()
    site.wait_for(lambda: site.said().delivering == {})
    site.light._pool.shutdown(wait=True)  # its thread waits for nothing any more
    assert site.end("one").outcome == "cancelled"


def test_a_cancel_ends_a_delivery_that_is_not_answered(site: WorkerContext) -> None:
    site.receiver.answering.clear()
    site.run("one", delivers=True)
    site.light.apply_desired(Desired(token="one", action="cancel", generation=1))
    assert site.end("one").outcome == "cancelled"
    site.light._pool.shutdown(wait=True)  # its thread sits in no socket any more
    assert not site.receiver.answering.is_set()


def test_that_something_runs_on_is_said_of_what_is_held_alone(site: WorkerContext) -> None:
    site.run("one", delivers=True)
    site.light.apply_desired(Desired(token="one", action="run", generation=2))
    site.light.apply_desired(Desired(token="has-paused", action="run", generation=4))
    site.light.apply_desired(Desired(token="is-over", action="pause", generation=3))
    assert {each.token: each.generation for each in site.said().reached} == {"one": 2, "is-over": 3}


def test_a_task_that_was_taken_away_stops_delivering(site: WorkerContext) -> None:
    site.run("one", delivers=True)
    site.light.drop("one")
    site.light._pool.shutdown(wait=True)
    assert site.outbox.finishing == ()
    assert not site.light.busy
