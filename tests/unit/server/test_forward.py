"""What a server hands on to the one that leads, and how it arrives: a real HTTP server stands for the leader."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from tests.unit.services.lab import FakeClock
from tunefleet.links.forward import epoch_of, proof
from tunefleet.server import launch
from tunefleet.server.forward import Forward, needs_leader
from tunefleet.services.core import Clock
from tunefleet.services.leading import SEEN, Leading
from tunefleet.services.signals import Signals
from tunefleet.store.servers import LeaderRow

SECRET = b"of one database"


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        ("/api/v1/link/exchange", True), ("/api/v1/link/register", True), ("/api/v1/workers", True),
        ("/api/v1/workers/w1/drain", True), ("/api/v1/tasks/t-1/chat/turns", True), ("/api/v1/live", True),
        ("/api/v1/tasks/t-1/v1/chat/completions", True), ("/api/training/agent/poll", True),
        ("/api/training/local/t-1/status", True), ("/workers", True),
        ("/api/v1/workflows", False), ("/api/v1/tasks/t-1/journal", False), ("/api/v1/events/stream", False),
        ("/api/v1/blobs/ab", False), ("/api/training/adapters/1/2/3", False), ("/api/v1/tasks/t-1/why", False),
    ],
)  # fmt: skip
def test_what_needs_the_leaders_memory_is_handed_on(path: str, needed: bool) -> None:
    assert needs_leader(path) is needed


def test_only_servers_of_the_database_prove_that_they_are() -> None:
    assert epoch_of(SECRET, proof(SECRET, 7)) == 7
    for given in (proof(b"another", 7), b"7.", b"7", b"", b".", proof(SECRET, 7).replace(b"7.", b"8."), b"9" * 40):
        assert epoch_of(SECRET, given) is None


@dataclass
class Leader:
    """An app that says what arrived; on `/…/live` it says something and then nothing more until it is left."""

    url: str = ""
    left: threading.Event = field(default_factory=threading.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        start = {"type": "http.response.start", "status": 418, "headers": [(b"x-tea", b"pot"), (b"connection", b"x")]}
        await send(start)
        if scope["path"].endswith("/live"):
            await send({"type": "http.response.body", "body": b"first", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.set()
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        told = [scope["method"], scope["raw_path"], scope["query_string"], headers.get("authorization"), body]
        told += [
            headers["host"],
            headers.get("x-forwarded-for"),
            epoch_of(SECRET, headers["x-tunefleet-peer"].encode()),
        ]
        await send({"type": "http.response.body", "body": repr(told).encode()})


@dataclass
class Server:
    """As much of a core as the hand-over looks at."""

    clock: Clock
    secret: bytes = SECRET
    leading: Leading = field(default_factory=lambda: Leading(shared=True))
    signals: Signals = field(default_factory=Signals)

    def follow(self, epoch: int, url: str | None) -> None:
        self.leading.row = LeaderRow(epoch, "srv-a", "p", url)
        self.signals.notify(SEEN)


@pytest.fixture
def leader() -> Iterator[Leader]:
    app = Leader()
    bound = launch.bind("127.0.0.1", 0)
    app.url = launch.url_of(bound)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield app
    server.should_exit = server.force_exit = True
    thread.join(30)
    bound.close()


@pytest.fixture
def here() -> Server:
    clock = FakeClock()
    return Server(Clock(lambda: clock.wall, lambda: clock.monotonic))


async def served_here(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here"})


@asynccontextmanager
async def asked(core: Any) -> AsyncIterator[httpx.AsyncClient]:
    forward = Forward(served_here, core=core)
    transport = httpx.ASGITransport(forward, client=("192.0.2.7", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://follower") as client:
        yield client
    await forward.peers().close()


async def test_a_request_arrives_as_it_came_and_so_does_the_answer(here: Server, leader: Leader) -> None:
    here.follow(3, leader.url)
    async with asked(here) as client:
        headers = {"Authorization": "Bearer k", "X-Forwarded-For": "forged"}
        reply = await client.post("/api/v1/workers/a%2Fb?x=1&y=%20", content=b"z" * 300_000, headers=headers)
        assert (reply.status_code, reply.headers["x-tea"]) == (418, "pot")
        assert "connection" not in reply.headers
        expected = ["POST", b"/api/v1/workers/a%2Fb", b"x=1&y=%20", "Bearer k", b"z" * 300_000, "follower"]
        expected += ["192.0.2.7", 3]
        assert reply.text == repr(expected)
        assert (await client.get("/api/v1/tasks/t-1")).text == "here"


async def test_the_leader_itself_serves_and_a_request_is_handed_on_once(here: Server) -> None:
    here.follow(3, "http://127.0.0.1:1")
    async with asked(here) as client:
        refused = await client.get("/api/v1/workers", headers={"X-Tunefleet-Peer": proof(SECRET, 3).decode()})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        here.leading.epoch, here.leading.until = 4, float("inf")
        assert (await client.get("/api/v1/workers")).text == "here"


async def test_a_request_waits_for_a_leader(here: Server, leader: Leader) -> None:
    async with asked(here) as client:
        waiting = asyncio.create_task(client.get("/api/v1/workers"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        here.follow(1, leader.url)
        assert (await waiting).status_code == 418


async def test_a_leader_without_an_address_is_named(here: Server) -> None:
    here.follow(1, None)
    ticks = iter(range(0, 10_000, 4))
    here.clock = Clock(here.clock.wall, lambda: float(next(ticks)))
    async with asked(here) as client:
        refused = await client.get("/api/v1/workers")
    assert refused.status_code == 503
    assert "TUNEFLEET_PEER_URL" in refused.json()["hint"]


async def test_a_held_answer_ends_when_another_server_leads(here: Server, leader: Leader) -> None:
    here.follow(1, leader.url)
    sent: list[Any] = []
    never = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await never.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": "/api/v1/live", "raw_path": b"/api/v1/live", "query_string": b"",
        "headers": [], "client": ("192.0.2.7", 1),
    }  # fmt: skip
    forward = Forward(served_here, core=here)  # type: ignore[arg-type]
    asking = asyncio.create_task(forward(scope, receive, send))
    while len(sent) < 2:
        await asyncio.sleep(0.01)
    assert sent[1]["body"] == b"first"
    here.follow(2, "http://127.0.0.1:1")
    await asyncio.wait_for(asking, 60)
    # It is cut off, so that whoever reads it sees that it is not whole; and the leader of before is left alone.
    assert all(message.get("more_body", True) for message in sent)
    assert await asyncio.to_thread(leader.left.wait, 60)
    await forward.peers().close()
