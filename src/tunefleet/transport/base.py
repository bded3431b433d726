"""The interface between a worker and whatever carries its messages."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from concurrent.futures import Executor
from urllib.parse import urlsplit

from tunefleet.schemas.worker_link import ExchangeReply, ExchangeRequest, RegisterReply, RegisterRequest


class WorkerLink(ABC):
    """The worker's end of a link. Safe to call from two threads at once.

    Every method raises `UnreachableError` if the server does not answer (worth another try), `AuthError` or
    `ForbiddenError` if the key is not good for a worker, `NotFoundError` if the worker has to register first, and
    `ConflictError` if the id is another worker's, or another process took this worker over.
    """

    @abstractmethod
    def register(self, request: RegisterRequest) -> RegisterReply:
        """Say who the worker is and what it holds; starts a session."""

    @abstractmethod
    def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        """Say what is new and wait up to `request.wait_s` for what the server wants."""

    @abstractmethod
    def close(self) -> None:
        """Give up connections; a call in another thread fails with `UnreachableError`."""


class AsyncWorkerLink(ABC):
    """The same for a worker that shares an event loop with many others; raises what `WorkerLink` raises."""

    @abstractmethod
    async def register(self, request: RegisterRequest) -> RegisterReply:
        """Say who the worker is and what it holds; starts a session."""

    @abstractmethod
    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        """Say what is new and wait up to `request.wait_s` for what the server wants."""

    @abstractmethod
    async def close(self) -> None:
        """Give up connections."""


def address_towards(url: str) -> str | None:
    """Return the address that this machine has in the network towards a host; None if there is no way there."""
    parts = urlsplit(url)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((parts.hostname or "127.0.0.1", parts.port or 80))  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


class ThreadedLink(AsyncWorkerLink):
    """Lets threads wait."""

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
