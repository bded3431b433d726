"""A server that does not lead forwards requests to the one that leads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from tests.unit.api.test_forward import SECRET, Server, asked, served_here
from tests.unit.orchestrator.lab import FakeClock
from tunefleet.api import launch
from tunefleet.api.middleware.leader_proxy import Forward
from tunefleet.orchestrator.context import Clock
from tunefleet.transport.forward import epoch_of


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


async def test_a_request_waits_for_a_leader(here: Server, leader: Leader) -> None:
    async with asked(here) as client:
        waiting = asyncio.create_task(client.get("/api/v1/workers"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        here.follow(1, leader.url)
        assert (await waiting).status_code == 418


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
