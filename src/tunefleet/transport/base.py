"""The interface between a worker and a transport."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from concurrent.futures import Executor
from urllib.parse import urlsplit

from tunefleet.schemas.worker_link import ExchangeReply, ExchangeRequest, RegisterReply, RegisterRequest


class WorkerLink(ABC):
    """The worker's end of a transport. Thread-safe for two concurrent calls.

    Every method raises `UnreachableError` if the server does not respond (retryable), `AuthError` or `ForbiddenError`
    if the key is not a valid worker key, `NotFoundError` if the worker must register first, and `ConflictError` if the
    id belongs to another worker, or another process has taken over this worker.
    """

    @abstractmethod
    def register(self, request: RegisterRequest) -> RegisterReply:
        """Register the worker and what it holds; starts a session."""

    @abstractmethod
    def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        """Report news and wait up to `request.wait_s` for the server's messages."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections; a call in another thread fails with `UnreachableError`."""


class AsyncWorkerLink(ABC):
    """The same for workers that share an event loop; raises as `WorkerLink` does."""

    @abstractmethod
    async def register(self, request: RegisterRequest) -> RegisterReply:
        """Register the worker and what it holds; starts a session."""

    @abstractmethod
    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        """Report news and wait up to `request.wait_s` for the server's messages."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""


def address_towards(url: str) -> str | None:
    """Return this machine's address in the network towards a host; `None` if there is no route."""
    parts = urlsplit(url)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((parts.hostname or "127.0.0.1", parts.port or 80))  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


class ThreadedLink(AsyncWorkerLink):
    """Runs a blocking link in threads."""

    def __init__(self, link: WorkerLink, threads: Executor) -> None:
        self._link = link
        self._threads = threads

    async def register(self, request: RegisterRequest) -> RegisterReply:
        """Register the worker and what it holds; starts a session."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._link.register, request)

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        """Report news and wait up to `request.wait_s` for the server's messages."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._link.exchange, request)

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._link.close)
