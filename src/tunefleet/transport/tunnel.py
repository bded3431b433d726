"""Relays HTTP requests from the server to a job's HTTP server on this machine; it works behind a NAT.

One thread holds a long poll for requests. An event loop sends them to the job, and their responses back in frames: the
frames of all responses share one request, so that hundreds of streams need two connections. Memory is bounded: a
response that its client does not read is not read from the job either.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx

from tunefleet.errors import AuthError, TunefleetError
from tunefleet.schemas.endpoints import (
    MAX_FRAMES,
    FramesReceipt,
    RelayedRequest,
    RelayedRequests,
    RelayPoll,
    ResponseFrame,
    ResponseFrames,
)
from tunefleet.transport.token_usage import UsageReader, with_usage

logger = logging.getLogger(__name__)

# Long-poll time of one request for requests.
_HOLD_S: Final = 20.0
# Poll interval while the job is still loading.
_LOAD_S: Final = 0.3
_PAUSE_S: Final = 2.0
# Frames that wait to be sent, in bytes; beyond it no more is read from the job.
_MAX_WAITING: Final = 1 << 20
_MAX_SENT: Final = 1 << 19
# How often the server is asked whether a client that did not read does so now.
_LOOK_S: Final = 0.2
_MODELS_S: Final = 5.0
_STREAM: Final = "text/event-stream"


class Tunnel:
    """A relay between a server and one job.

    Args:
        socket: The Unix socket of the job's HTTP server.
        fetch: Polls the server for requests.
        send: Sends frames to the server.
        end: Called when the server requests the end of the job.
    """

    def __init__(
        self,
        name: str,
        socket: Path,
        fetch: Callable[[RelayPoll], RelayedRequests],
        send: Callable[[ResponseFrames], FramesReceipt],
        end: Callable[[], None],
    ) -> None:
        self._name = name
        self._socket = socket
        self._fetch = fetch
        self._send = send
        self._end = end
        self._stop = threading.Event()
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._frames: list[ResponseFrame] = []
        self._waiting_bytes = 0
        self._full: frozenset[str] = frozenset()
        self._sent: frozenset[str] = frozenset()

    def stop(self) -> None:
        """End the relay; it does not wait for a poll that the server holds."""
        self._stop.set()

    def run(self) -> None:
        """Relay until `stop`, or until the attempt is revoked."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Condition()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
        transport = httpx.AsyncHTTPTransport(uds=str(self._socket), limits=limits)
        # No read timeout: a long prompt takes minutes, and the server cancels what no client waits for.
        timeout = httpx.Timeout(None, connect=5.0)
        async with httpx.AsyncClient(transport=transport, timeout=timeout, base_url="http://job/v1/") as self._job:
            threading.Thread(target=self._poll, name=f"poll-{self._name}", daemon=True).start()
            sending = asyncio.create_task(self._send_frames())
            while not self._stop.is_set():
                await asyncio.sleep(_LOOK_S)
            for task in (sending, *self._calls.values()):
                task.cancel()

    def _poll(self) -> None:
        while not self._stop.is_set():
            try:
                poll = asyncio.run_coroutine_threadsafe(self._next_poll(), self._loop).result()
                reply = self._fetch(poll)
                self._loop.call_soon_threadsafe(self._take, reply)
                if not poll.ready or reply.end:
                    self._stop.wait(_LOAD_S)
            except AuthError as error:
                logger.info("Stopped the relay of %s: %s", self._name, error)
                self._stop.set()
            except TunefleetError as error:
                logger.info("Could not fetch requests of %s: %s", self._name, error)
                self._stop.wait(_PAUSE_S)
            except RuntimeError:
                if not self._stop.is_set():  # the loop is closed after a stop
                    raise

    async def _next_poll(self) -> RelayPoll:
        models = await self._models()
        # Also those whose last frames are on their way: the server must not take them for lost.
        held = {*self._calls, *(frame.id for frame in self._frames), *self._sent}
        wait_s = _LOAD_S if models is None else _HOLD_S
        return RelayPoll(ready=models is not None, models=models or (), held=tuple(held), wait_s=wait_s)

    async def _models(self) -> tuple[str, ...] | None:
        try:
            response = await self._job.get("models", timeout=_MODELS_S)
            return tuple(str(each["id"]) for each in response.raise_for_status().json()["data"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None  # not ready yet, or gone; the next round retries

    def _take(self, reply: RelayedRequests) -> None:
        for request in reply.requests:
            task = asyncio.create_task(self._relay(request), name=request.id)
            self._calls[request.id] = task
            task.add_done_callback(lambda _, id_=request.id: self._calls.pop(id_, None))  # type: ignore[misc]
        for call_id in reply.gone:
            self._cancel(call_id)
        if reply.end:
            self._end()

    def _cancel(self, call_id: str) -> None:
        task = self._calls.get(call_id)
        if task is not None:
            task.cancel()

    async def _relay(self, request: RelayedRequest) -> None:
        body, hides = with_usage(request.path, request.body)
        headers = {"Content-Type": "application/json"}
        try:
            async with self._job.stream("POST", request.path, content=body, headers=headers) as response:
                kind = response.headers.get("content-type", "application/json")
                reader = UsageReader(stream=kind.startswith(_STREAM), hides=hides)
                await self._put(ResponseFrame(id=request.id, status=response.status_code, content_type=kind[:200]))
                async for data in response.aiter_bytes(1 << 16):
                    if passed := reader.pass_on(data):
                        await self._put(ResponseFrame(id=request.id, data=passed))
                rest = reader.finish()
                await self._put(ResponseFrame(id=request.id, data=rest, end=True, usage=reader.usage))
        except httpx.HTTPError as error:
            logger.info("The job of %s broke off a response: %r", self._name, error)
            await self._put(ResponseFrame(id=request.id, error="The model's process ended during the response."))

    async def _put(self, frame: ResponseFrame) -> None:
        async with self._changed:
            # An end is small, and must not wait for a client that may never read.
            await self._changed.wait_for(
                lambda: frame.end or (frame.id not in self._full and self._waiting_bytes < _MAX_WAITING)
            )
            self._frames.append(frame)
            self._waiting_bytes += len(frame.data)
            self._changed.notify_all()

    async def _send_frames(self) -> None:
        while True:
            async with self._changed:
                try:
                    async with asyncio.timeout(_LOOK_S if self._full else None):
                        await self._changed.wait_for(lambda: bool(self._frames))
                except TimeoutError:
                    pass  # ask whether there is room for the paused responses
                frames, size = self._next()
                self._sent = frozenset(frame.id for frame in frames)
            try:
                sent = ResponseFrames(frames=tuple(frames), paused=tuple(self._full))
                receipt = await asyncio.to_thread(self._send, sent)
            except TunefleetError as error:
                # Not repeated, since part of it may have arrived; the next poll reports that these are not held.
                logger.info("Lost %d responses of %s: %s", len(self._sent), self._name, error)
                receipt = FramesReceipt(gone=tuple(self._sent | self._full))
            async with self._changed:
                self._sent = frozenset()
                self._waiting_bytes -= size
                self._full = frozenset(receipt.full)
                for call_id in receipt.gone:
                    self._cancel(call_id)
                self._changed.notify_all()

    def _next(self) -> tuple[list[ResponseFrame], int]:
        """Return the next frames to send and their size; frames of one response are joined."""
        taken: dict[str, ResponseFrame] = {}
        size = count = 0
        for frame in self._frames[:MAX_FRAMES]:
            if size > _MAX_SENT:
                break
            before = taken.get(frame.id)
            taken[frame.id] = frame if before is None else _joined(before, frame)
            size, count = size + len(frame.data), count + 1
        del self._frames[:count]
        return list(taken.values()), size


def _joined(first: ResponseFrame, second: ResponseFrame) -> ResponseFrame:
    return second.model_copy(
        update={"status": first.status, "content_type": first.content_type, "data": first.data + second.data}
    )
