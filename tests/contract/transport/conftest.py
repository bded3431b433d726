"""One suite for every link: the worker's end of each, joined to a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.transport.workers import Workers
from tests.integration.redis.process import RedisProcess
from tunefleet.api import launch
from tunefleet.api.app import create_app
from tunefleet.client import Client
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.schemas.worker_link import Capabilities, ExecutorOffer, RegisterRequest
from tunefleet.settings import ServerSettings, load
from tunefleet.transport.base import WorkerLink
from tunefleet.transport.http import HttpLink
from tunefleet.transport.redis.keys import Keys
from tunefleet.transport.redis.worker import RedisLink

ECHO = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: hello}
spec: {taskType: echo, data: {type: list, items: [a]}}
"""


LINKS = ("http", "redis", "rediss")
over_one_link = pytest.mark.parametrize(
    "site", [pytest.param(link, marks=pytest.mark.proof if link != "http" else ()) for link in LINKS], indirect=True
)
"""For what hangs on the link little, and takes long: `make test` walks one."""


@dataclass
class Site:
    """A running server and how to reach it."""

    url: str
    admin_key: str
    worker_key: str
    client: Client
    redis: RedisProcess | None = None

    def link(self, key: str | None = None) -> WorkerLink:
        """Open another end of the link; a key is of use over HTTP alone."""
        if self.redis is not None:
            return RedisLink(self.redis.url, Keys(), server_url=self.url)
        return HttpLink(self.url, key or self.worker_key)

    def submit(self) -> str:
        """Submit an echo task; returns its id."""
        return self.client.submit(ECHO).task_id


@pytest.fixture(scope="module", params=["http", "redis", pytest.param("rediss", marks=pytest.mark.proof)])
def site(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    redis_server: Callable[..., RedisProcess],
    secured_redis: Callable[..., RedisProcess],
) -> Iterator[Site]:
    data: Path = tmp_path_factory.mktemp("data")
    start = {"redis": redis_server, "rediss": secured_redis}.get(request.param)
    redis = start() if start is not None else None
    met = {"redis_url": redis.server_url} if redis is not None else {}
    core = open_context(load(ServerSettings, data=data, synchronous="NORMAL", lost_after_s=180, **met))
    bound = launch.bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    server = launch.make(create_app(core))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    admin, worker = ((data / "keys" / f"{role}.key").read_text().strip() for role in ("admin", "worker"))
    with Client(url, admin) as client:
        yield Site(url, admin, worker, client, redis)
    server.should_exit = True
    thread.join(15)
    core.close()


@pytest.fixture
def link(site: Site) -> Iterator[WorkerLink]:
    made = site.link()
    yield made
    made.close()


def registration(worker_id: str, **more: object) -> RegisterRequest:
    """What a worker with eight light slots says of itself."""
    described = Capabilities(
        version="0",
        hostname="here",
        executors=(ExecutorOffer(kind="echo", slot_class="light"),),
        slots={"job": 0, "light": 8},
        cpu_count=1,
        memory_total_bytes=1 << 30,
        memory_free_bytes=1 << 30,
        disk_free_bytes=1 << 30,
    )
    plain = {"worker_id": worker_id, "session": "s1", "state_id": f"state-{worker_id}", "capabilities": described}
    return RegisterRequest.model_validate(plain | more)


@pytest.fixture
def workers(site: Site, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(site, tmp_path)
    yield made
    made.close()
    for worker in site.client.workers.list().items:
        site.client.workers.cordon(worker.id)  # it is gone, and must not be offered what the next test submits
