"""A real server in a thread, a worker played by hand, and the command line run in this process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.integration.api.support import ECHO, HandWorker, Running
from tunefleet.api import launch
from tunefleet.api.app import create_app
from tunefleet.cli.main import run
from tunefleet.client import Client
from tunefleet.client.attempt import AttemptClient
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.schemas.worker_link import JournalBatch
from tunefleet.settings import ServerSettings, load

LOG = "loading\n" + "".join(f"step {step}\n" for step in range(1, 41)) + "done\n"


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Ended]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("data")
    core = open_context(
        load(ServerSettings, data=data, synchronous="NORMAL", lost_after_s=600, url_allow=("127.0.0.1",))
    )
    bound = launch.bind("127.0.0.1", 0)
    server = launch.make(create_app(core))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    secrets = [(data / "keys" / f"{name}.key").read_text().strip() for name in ("admin", "worker")]
    found = Running(f"http://127.0.0.1:{bound.getsockname()[1]}", core, server, thread, *secrets)
    yield found
    found.stop()
    core.close()


@pytest.fixture(scope="module")
def hand(running: Running) -> Iterator[HandWorker]:
    with running.client(running.worker_key) as http:
        hand = HandWorker(http, "by-hand")
        hand.register()
        yield hand


@pytest.fixture
def client(running: Running) -> Iterator[Client]:
    with Client(running.url, running.admin_key) as client:
        yield client


@pytest.fixture
def cli(running: Running, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.setenv("TUNEFLEET_URL", running.url)
    monkeypatch.setenv("TUNEFLEET_KEY", running.admin_key)

    def call(*args: object) -> Ended:
        capsys.readouterr()
        code = run([str(arg) for arg in args])
        return Ended(code, *capsys.readouterr())

    return call


class Played(NamedTuple):
    """A task that the hand worker has taken."""

    task_id: str
    token: str
    attempt: AttemptClient


@pytest.fixture
def take(running: Running, client: Client, hand: HandWorker) -> Iterator[Callable[..., Played]]:
    """Submit an echo task and take it; it has a journal, a log and an artifact when it is returned."""
    taken: list[Played] = []

    def play(folder: Path | None = None) -> Played:
        task_id = client.submit(ECHO).task_id
        token = hand.take(task_id)
        played = Played(task_id, token, AttemptClient(running.url, token))
        taken.append(played)
        lines = [json.dumps({"seq": seq, "at": 1.0e9 + seq, **record}) for seq, record in enumerate(_records())]
        played.attempt.journal(task_id, JournalBatch(launch="launch-1", from_seq=0, lines=tuple(lines)))
        played.attempt.log(task_id, 0, LOG.encode())
        if folder is not None:
            (folder / "final_lora").mkdir()
            (folder / "final_lora" / "adapter.bin").write_bytes(b"weights" * 1000)
            played.attempt.push_artifact(task_id, "final_lora", "adapter", folder / "final_lora")
        return played

    yield play
    for played in taken:
        played.attempt.close()
        if played.token in hand.holding:
            hand.finish(played.token)


def _records() -> Iterator[dict[str, Any]]:
    yield {"type": "launch", "launch": "launch-1", "attempt": 1}
    yield {"type": "event", "name": "start", "message": "Training from step 0 to 40."}
    for step in range(2, 41, 2):
        values = {"loss": 8.0 / step + 1, "learning_rate": 1e-4}
        yield {"type": "metric", "step": step, "window": [step - 1, step], "values": values}
    yield {
        "type": "progress",
        "phase": "training",
        "step": 40,
        "max_steps": 100,
        "step_time_s": 0.15,
        "tokens_per_s": 5234.0,
        "eta_s": 9.0,
        "rss_bytes": 800 << 20,
    }


def finish(http: httpx.Client, hand: HandWorker, played: Played, *, outcome: str, reason: str, error: str) -> None:
    """End an attempt as failed or cancelled."""
    body = {"token": played.token, "outcome": outcome, "reason": reason, "error": error, "detail": "Traceback: here"}
    assert played.token in hand.exchange(finishes=[body])["finished"]
    hand.holding.remove(played.token)
