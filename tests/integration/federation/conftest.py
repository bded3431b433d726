"""A real server on a free port, in a thread of the test process; a double of one, and a callback that talks to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.fakes.federation import FEDERATION, TOKEN, Double, serving
from tests.integration.api.support import Running, until
from tunefleet.api import launch
from tunefleet.api.app import create_app
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.settings import ServerSettings, load


@pytest.fixture
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("data")
    core = open_context(load(ServerSettings, data=data, synchronous="NORMAL", lost_after_s=600))
    bound = launch.bind("127.0.0.1", 0)
    server = launch.make(create_app(core))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    until(lambda: server.started)
    keys = data / "keys"
    running = Running(
        url=f"http://127.0.0.1:{bound.getsockname()[1]}",
        core=core,
        server=server,
        thread=thread,
        admin_key=(keys / "admin.key").read_text().strip(),
        worker_key=(keys / "worker.key").read_text().strip(),
    )
    yield running
    running.stop()
    core.close()


@pytest.fixture
def double() -> Iterator[Double]:
    with serving() as double:
        yield double


@pytest.fixture
def federated(double: Double) -> Callable[..., Any]:
    def make(**options: Any) -> Any:
        from tunefleet import FederatedCallback

        given: dict[str, Any] = {"token": TOKEN, "sync_every_steps": 4, **options}
        return FederatedCallback(double.url, FEDERATION, given.pop("worker_id", "lab"), **given)

    return make
