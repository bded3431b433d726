"""What a server hands on to the one that leads, and how it arrives: a real HTTP server stands for the leader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from tests.unit.orchestrator.lab import FakeClock
from tunefleet.api.middleware.leader_proxy import Forward, needs_leader
from tunefleet.db.fleet.servers import LeaderRow
from tunefleet.orchestrator.context import Clock
from tunefleet.orchestrator.ha.leader_election import SEEN
from tunefleet.orchestrator.leadership import Leadership
from tunefleet.orchestrator.pubsub import PubSub
from tunefleet.transport.forward import epoch_of, proof

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
class Server:
    """As much of a core as the hand-over looks at."""

    clock: Clock
    secret: bytes = SECRET
    leading: Leadership = field(default_factory=lambda: Leadership(shared=True))
    signals: PubSub = field(default_factory=PubSub)

    def follow(self, epoch: int, url: str | None) -> None:
        self.leading.row = LeaderRow(epoch, "srv-a", "p", url)
        self.signals.notify(SEEN)


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


async def test_the_leader_itself_serves_and_a_request_is_handed_on_once(here: Server) -> None:
    here.follow(3, "http://127.0.0.1:1")
    async with asked(here) as client:
        refused = await client.get("/api/v1/workers", headers={"X-Tunefleet-Peer": proof(SECRET, 3).decode()})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        here.leading.epoch, here.leading.until = 4, float("inf")
        assert (await client.get("/api/v1/workers")).text == "here"


async def test_a_leader_without_an_address_is_named(here: Server) -> None:
    here.follow(1, None)
    ticks = iter(range(0, 10_000, 4))
    here.clock = Clock(here.clock.wall, lambda: float(next(ticks)))
    async with asked(here) as client:
        refused = await client.get("/api/v1/workers")
    assert refused.status_code == 503
    assert "TUNEFLEET_PEER_URL" in refused.json()["hint"]
