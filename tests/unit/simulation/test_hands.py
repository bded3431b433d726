"""The two hands of a simulated worker: what overtaken answers offer is not taken, and a slow server is waited for."""

from __future__ import annotations

import asyncio
import random

import pytest

from tunefleet.errors import TunefleetError, UnreachableError
from tunefleet.schemas.worker_link import ExchangeReply, ExchangeRequest, Offer, RegisterReply, RegisterRequest
from tunefleet.simulation import poll_exchange
from tunefleet.simulation.poll_exchange import Poller
from tunefleet.transport.base import AsyncWorkerLink

OFFERED = ExchangeReply.model_construct(**{**dict(ExchangeReply()), "offers": (Offer.model_construct(token="t"),)})


class Link(AsyncWorkerLink):
    """Holds the first exchange until it is let go, and answers the others at once."""

    def __init__(self) -> None:
        self.count = 0
        self.gate = asyncio.Event()

    async def register(self, request: RegisterRequest) -> RegisterReply:
        raise NotImplementedError

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        self.count += 1
        if self.count == 1:
            await self.gate.wait()
            return OFFERED
        if self.count > 2:
            await asyncio.sleep(60)
        return ExchangeReply(finished=("t",))

    async def close(self) -> None:
        """Nothing to close."""


class Delegate:
    def __init__(self, *, away: int = 0) -> None:
        self.heard_of: list[ExchangeReply] = []
        self.faults: list[TunefleetError] = []
        self.away = away

    def draft(self, wait_s: float) -> ExchangeRequest:
        return ExchangeRequest(worker_id="w", session="s", wait_s=wait_s)

    def on_reply(self, request: ExchangeRequest, reply: ExchangeReply, took_s: float) -> None:
        self.heard_of.append(reply)

    async def register(self) -> float:
        self.away -= 1
        if self.away >= 0:
            raise UnreachableError("Busy.")
        return 1.0

    def fault(self, error: TunefleetError) -> None:
        self.faults.append(error)


async def until(condition: object) -> None:
    async with asyncio.timeout(30):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.001)


async def test_what_an_overtaken_answer_offers_is_not_taken() -> None:
    link, delegate, fatal = Link(), Delegate(), list[TunefleetError]()
    both = Poller(link, delegate, random.Random(0), fatal.append)
    await both.start()
    await until(lambda: link.count == 1)
    both.notify()
    await until(lambda: len(delegate.heard_of) == 1)
    link.gate.set()
    await until(lambda: len(delegate.heard_of) == 2)
    assert [reply.offers for reply in delegate.heard_of] == [(), ()]
    await both.stop()
    assert fatal == []


async def test_a_server_that_does_not_answer_at_once_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    delegate = Delegate(away=2)
    both = Poller(Link(), delegate, random.Random(0), lambda _: None)
    await both.start()
    await both.stop()
    assert len(delegate.faults) == 2
    monkeypatch.setattr(poll_exchange, "_PATIENCE_S", 0.0)
    with pytest.raises(UnreachableError):
        await Poller(Link(), Delegate(away=9), random.Random(0), lambda _: None).start()
