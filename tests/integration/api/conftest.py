"""A real server on a free port, in a thread of the test process, and clients with each role."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.api.support import HandWorker, Running
from tunefleet.api import launch
from tunefleet.api.app import create_app
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.settings import ServerSettings, load


@pytest.fixture(scope="session")
def start() -> Callable[..., Running]:
    def start_server(data: Path, **settings: Any) -> Running:
        core = open_context(load(ServerSettings, data=data, synchronous="NORMAL", **settings))
        bound = launch.bind("127.0.0.1", 0)
        port = bound.getsockname()[1]
        server = launch.make(create_app(core))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 60
        while not server.started:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)
        keys = data / "keys"
        return Running(
            url=f"http://127.0.0.1:{port}",
            core=core,
            server=server,
            thread=thread,
            admin_key=(keys / "admin.key").read_text().strip(),
            worker_key=(keys / "worker.key").read_text().strip(),
        )

    return start_server


@pytest.fixture(scope="module")
def running(start: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("data"), max_body_bytes=1 << 20, lost_after_s=600)
    yield running
    running.stop()
    running.core.close()


@pytest.fixture
def admin(running: Running) -> Iterator[httpx.Client]:
    with running.client(running.admin_key) as client:
        yield client


@pytest.fixture
def worker(running: Running) -> Iterator[httpx.Client]:
    with running.client(running.worker_key) as client:
        yield client


@pytest.fixture(scope="module")
def hand(running: Running) -> Iterator[HandWorker]:
    """The only worker of a module: what another one was offered, nobody would take."""
    with running.client(running.worker_key) as client:
        hand = HandWorker(client, "by-hand")
        hand.register()
        yield hand


@pytest.fixture
def as_role(running: Running, admin: httpx.Client) -> Iterator[Callable[[str], httpx.Client]]:
    """Make a client with a new key of some role."""
    made: list[httpx.Client] = []

    def client(role: str) -> httpx.Client:
        reply = admin.post("/keys", json={"name": f"a {role}", "role": role})
        assert reply.status_code == 201, reply.text
        made.append(running.client(reply.json()["secret"]))
        return made[-1]

    yield client
    for each in made:
        each.close()
