"""The two hands of a simulated worker: one waits in a long poll, and when there is news the other says it.

The server answers the older exchange at once, empty, as it does for a real worker. What comes about in one turn of the
event loop is said together.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final, Protocol

from tunefleet.errors import NotFoundError, TunefleetError, UnreachableError
from tunefleet.schemas.worker_link import ExchangeReply, ExchangeRequest
from tunefleet.transport.base import AsyncWorkerLink

_BACKOFF_S: Final = (0.1, 2.0)
_PATIENCE_S: Final = 60.0
"""A server that thousands come to at the same time may take so long to answer one of them."""


class Mind(Protocol):
    """Who decides what is said, and what an answer means."""

    def draft(self, wait_s: float) -> ExchangeRequest:
        """Write the next request."""

    def heard(self, request: ExchangeRequest, reply: ExchangeReply, took_s: float) -> None:
        """Act on an answer."""

    async def register(self) -> float:
        """Register (again); returns for how long an exchange may be held."""

    def fault(self, error: TunefleetError) -> None:
        """Note something that is tried again."""


class Hands:
    """Keeps an exchange open."""

    def __init__(
        self, link: AsyncWorkerLink, mind: Mind, chance: random.Random, on_fatal: Callable[[TunefleetError], None]
    ) -> None:
        self._link, self._mind, self._chance, self._on_fatal = link, mind, chance, on_fatal
        self._on_wire: set[asyncio.Task[None]] = set()
        self._version = self._said = 0
        self._sent = self._heard = 0
        self._hold_s = 0.0
        self._over = self._away = False

    async def start(self) -> None:
        """Register, and open the first exchange.

        Raises:
            TunefleetError: If the server does not take the worker.
        """
        self._hold_s = await self._registered()
        self._go_on()

    async def _registered(self) -> float:
        """Register for the first time, as patiently as a real worker, though not for ever."""
        ends_at, pause_s = time.monotonic() + _PATIENCE_S, _BACKOFF_S[0]
        while True:
            try:
                return await self._mind.register()
            except UnreachableError as error:
                if time.monotonic() > ends_at:
                    raise
                self._mind.fault(error)
                await asyncio.sleep(pause_s * (1 + self._chance.random()))
                pause_s = min(2 * pause_s, _BACKOFF_S[1])

    def news(self) -> None:
        """There is something new to say."""
        self._version += 1
        asyncio.get_running_loop().call_soon(self._go_on)

    def rest(self) -> None:
        """Open no further exchange."""
        self._over = True

    async def stop(self) -> None:
        """Open no further exchange, and give up those that wait."""
        self.rest()
        waiting = list(self._on_wire)
        for exchange in waiting:
            exchange.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    def _go_on(self) -> None:
        speaks = self._version != self._said
        room = not self._on_wire or (speaks and len(self._on_wire) == 1)
        if self._over or self._away or not room:
            return
        exchange = asyncio.get_running_loop().create_task(self._exchange())
        self._on_wire.add(exchange)
        exchange.add_done_callback(self._done)

    def _done(self, exchange: asyncio.Task[None]) -> None:
        self._on_wire.discard(exchange)
        error = None if exchange.cancelled() else exchange.exception()
        if error is None:
            self._go_on()
            return
        self.rest()
        if not isinstance(error, TunefleetError):
            error = TunefleetError(f"A simulated worker failed: {error!r}.")
        self._on_fatal(error)

    async def _exchange(self) -> None:
        request, self._said = self._mind.draft(self._hold_s), self._version
        self._sent += 1
        number = self._sent
        began = time.monotonic()
        try:
            reply = await self._link.exchange(request)
        except (UnreachableError, NotFoundError) as error:
            self._mind.fault(error)
            await self._come_back()
            return
        if number < self._heard and reply.offers:
            # A newer answer has overtaken this one: what it offers may have been run since.
            reply = reply.model_copy(update={"offers": ()})
        self._heard = max(self._heard, number)
        self._mind.heard(request, reply, time.monotonic() - began)

    async def _come_back(self) -> None:
        """Register until the server answers; of two hands one does it."""
        if self._away:
            return
        self._away, pause_s = True, _BACKOFF_S[0]
        try:
            while not self._over:
                await asyncio.sleep(pause_s * (1 + self._chance.random()))
                try:
                    self._hold_s = await self._mind.register()
                except UnreachableError as error:
                    self._mind.fault(error)
                    pause_s = min(2 * pause_s, _BACKOFF_S[1])
                else:
                    return
        finally:
            self._away = False
