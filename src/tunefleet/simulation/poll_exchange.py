"""Long polling of a simulated worker: one exchange waits, and a second one sends new messages.

The server then answers the older exchange immediately and empty, as for a real worker. Messages of one turn of the
event loop are sent together.
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
# With thousands of workers that register together, the server may take this long to answer one of them.
_PATIENCE_S: Final = 60.0


class ExchangeDelegate(Protocol):
    """Writes requests and handles replies for a `Poller`."""

    def draft(self, wait_s: float) -> ExchangeRequest:
        """Return the next request."""

    def on_reply(self, request: ExchangeRequest, reply: ExchangeReply, took_s: float) -> None:
        """Handle a reply."""

    async def register(self) -> float:
        """Register (again); returns the maximum hold time of an exchange."""

    def fault(self, error: TunefleetError) -> None:
        """Record an error that is retried."""


class Poller:
    """Keeps an exchange open."""

    def __init__(
        self,
        link: AsyncWorkerLink,
        delegate: ExchangeDelegate,
        rng: random.Random,
        on_fatal: Callable[[TunefleetError], None],
    ) -> None:
        self._link, self._delegate, self._rng, self._on_fatal = link, delegate, rng, on_fatal
        self._in_flight: set[asyncio.Task[None]] = set()
        self._version = self._sent_version = 0
        self._sent = self._newest_reply = 0
        self._hold_s = 0.0
        self._closed = self._reconnecting = False

    async def start(self) -> None:
        """Register, and open the first exchange.

        Raises:
            TunefleetError: If the server rejects the worker.
        """
        self._hold_s = await self._registered()
        self._open_exchange()

    async def _registered(self) -> float:
        """Register for the first time; retries like a real worker, but not forever."""
        ends_at, pause_s = time.monotonic() + _PATIENCE_S, _BACKOFF_S[0]
        while True:
            try:
                return await self._delegate.register()
            except UnreachableError as error:
                if time.monotonic() > ends_at:
                    raise
                self._delegate.fault(error)
                # Jitter spreads the retries of many workers.
                await asyncio.sleep(pause_s * (1 + self._rng.random()))
                pause_s = min(2 * pause_s, _BACKOFF_S[1])

    def notify(self) -> None:
        """Send new messages in the next exchange."""
        self._version += 1
        asyncio.get_running_loop().call_soon(self._open_exchange)

    def close(self) -> None:
        """Open no further exchange."""
        self._closed = True

    async def stop(self) -> None:
        """Open no further exchange, and cancel open ones."""
        self.close()
        waiting = list(self._in_flight)
        for exchange in waiting:
            exchange.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    def _open_exchange(self) -> None:
        has_news = self._version != self._sent_version
        allowed = not self._in_flight or (has_news and len(self._in_flight) == 1)
        if self._closed or self._reconnecting or not allowed:
            return
        exchange = asyncio.get_running_loop().create_task(self._exchange())
        self._in_flight.add(exchange)
        exchange.add_done_callback(self._done)

    def _done(self, exchange: asyncio.Task[None]) -> None:
        self._in_flight.discard(exchange)
        error = None if exchange.cancelled() else exchange.exception()
        if error is None:
            self._open_exchange()
            return
        self.close()
        if not isinstance(error, TunefleetError):
            error = TunefleetError(f"A simulated worker failed: {error!r}.")
        self._on_fatal(error)

    async def _exchange(self) -> None:
        request, self._sent_version = self._delegate.draft(self._hold_s), self._version
        self._sent += 1
        number = self._sent
        began = time.monotonic()
        try:
            reply = await self._link.exchange(request)
        except (UnreachableError, NotFoundError) as error:
            self._delegate.fault(error)
            await self._reconnect()
            return
        if number < self._newest_reply and reply.offers:
            # A newer reply overtook this one: its offers may already have been run.
            reply = reply.model_copy(update={"offers": ()})
        self._newest_reply = max(self._newest_reply, number)
        self._delegate.on_reply(request, reply, time.monotonic() - began)

    async def _reconnect(self) -> None:
        """Register until the server answers."""
        # Both open exchanges fail together: the first one registers.
        if self._reconnecting:
            return
        self._reconnecting, pause_s = True, _BACKOFF_S[0]
        try:
            while not self._closed:
                await asyncio.sleep(pause_s * (1 + self._rng.random()))
                try:
                    self._hold_s = await self._delegate.register()
                except UnreachableError as error:
                    self._delegate.fault(error)
                    pause_s = min(2 * pause_s, _BACKOFF_S[1])
                else:
                    return
        finally:
            self._reconnecting = False
