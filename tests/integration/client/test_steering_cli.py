"""The story of a task that is steered from the command line; the worker is played by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.transport.test_steering import TRAIN, Trainer
from tests.integration.api.support import Running
from tests.integration.client.conftest import Cli
from tunefleet.client import Client
from tunefleet.client.attempt import AttemptClient
from tunefleet.schemas.worker_link import Finish, JournalBatch
from tunefleet.transport.http import HttpLink


class Playing(Trainer):
    """Carries out what it is asked for, in a thread, while the command line waits."""

    def __init__(self, running: Running) -> None:
        super().__init__(HttpLink(running.url, running.worker_key))
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.fails: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join(10)
        self.link.close()

    def _play(self) -> None:
        while not self._over.is_set():
            reply = self.say(wait_s=0.3)
            for offer in reply.offers:
                self.say(accepts=[offer.token])
                self.holding.append(offer.token)
            for command in reply.commands:
                self.seen.append((command.command, command.data))
                state = "failed" if self.fails else "durable" if "save" in command.command else "applied"
                outcome = {"command_id": command.command_id, "state": state, "step": 7, "message": self.fails}
                self.say(outcomes=[outcome | ({"checkpoint": "checkpoint-7"} if state == "durable" else {})])
                if command.command == "save_and_stop":
                    self._finish(command.token, "completed", "stopped_early")
            for wish in reply.desired:
                if wish.action == "pause":
                    self._finish(wish.token, "paused", "paused")

    def _finish(self, token: str, outcome: Any, reason: str) -> None:
        self.say(finishes=[Finish(token=token, outcome=outcome, reason=reason).model_dump()])
        self.holding.remove(token)


@pytest.fixture
def playing(running: Running) -> Iterator[Playing]:
    made = Playing(running)
    made.begin()
    yield made
    made.end()


def until_running(client: Client, task_id: str) -> None:
    deadline = time.monotonic() + 10
    while client.tasks.get(task_id).status != "running":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_pause_resume_save_set_and_stop(cli: Cli, client: Client, running: Running, playing: Playing) -> None:
    task_id = client.submit(TRAIN).task_id
    until_running(client, task_id)
    with AttemptClient(running.url, playing.holding[0]) as attempt:
        record = '{"seq":1,"at":1.0,"type":"checkpoint","step":4,"name":"checkpoint-4","digest":"d","size_bytes":2048}'
        first = '{"seq":0,"at":1.0,"type":"launch","launch":"a"}'
        attempt.journal(task_id, JournalBatch(launch="a", from_seq=0, lines=(first, record)))
    saved = cli("save", task_id)
    assert (saved.code, "done at step 7, saved as checkpoint-7" in saved.out) == (0, True)
    changed = cli("set", task_id, "learning_rate=1e-5", "--json")
    assert (changed.code, changed.json["state"], changed.json["data"]) == (0, "applied", {"learning_rate": 1e-5})
    assert cli("evaluate", task_id).code == 0
    assert playing.seen == [("save_checkpoint", {}), ("set", {"learning_rate": 1e-5}), ("evaluate", {})]
    playing.fails = "The disk is full."
    refused = cli("save", task_id)
    assert (refused.code, "The disk is full." in refused.out) == (1, True)
    playing.fails = None
    wrong = cli("set", task_id, "momentum=0.9")
    assert (wrong.code, "momentum" in wrong.err) == (3, True)

    listed = cli("checkpoints", task_id)
    assert "2.0 KiB" in listed.out
    assert "worker" in listed.out
    paused = cli("pause", task_id)
    assert (paused.code, f"{task_id} is paused." in paused.out) == (0, True)
    assert cli("resume", task_id, "--from", "soon").code == 3
    nowhere = cli("resume", task_id, "--from", "400")
    assert (nowhere.code, "no checkpoint 400" in nowhere.err) == (5, True)
    # It may have been offered again already when it is shown.
    assert cli("resume", task_id, "--from", "4", "--json").json[0]["status"] in {"queued", "dispatched", "running"}
    until_running(client, task_id)
    assert cli("stop", task_id).code == 0
    assert client.tasks.wait(task_id, timeout_s=10).reason == "stopped_early"
    late = cli("pause", task_id)
    assert (late.code, "completed" in late.err) == (5, True)
    again = cli("resume", task_id)
    assert (again.code, f"resumes {task_id}" in again.out) == (0, True)
    child = next(task for task in client.tasks.list().items if task.parent_task_id == task_id)
    until_running(client, child.id)
    assert cli("cancel", child.id).code == 0
