"""A link that blocks, for a worker in an event loop: its calls wait in threads."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from tunefleet.links.base import AsyncWorkerLink, WorkerLink
from tunefleet.schemas.worker_link import ExchangeReply, ExchangeRequest, RegisterReply, RegisterRequest


class ThreadedLink(AsyncWorkerLink):
    """Lets threads wait.

    Args:
        link: Does the work.
        threads: Where its calls wait; two for each link, since two exchanges may be on the wire.
    """

    def __init__(self, link: WorkerLink, threads: Executor) -> None:
        self._link = link
        self._threads = threads

    async def register(self, request: RegisterRequest) -> RegisterReply:
        """Say who the worker is and what it holds; starts a session."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._link.register, request)

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        """Say what is new and wait up to `request.wait_s` for what the server wants."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._link.exchange, request)

    async def close(self) -> None:
        """Give up connections."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._link.close)
