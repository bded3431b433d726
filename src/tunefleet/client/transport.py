"""Drives calls, flows and streams over httpx: in a thread or on an event loop.

Requests, retries and error mapping are shared; the two classes differ only in `await`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import orjson
from pydantic import ValidationError
from tenacity import AsyncRetrying, RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from tunefleet.client import direct_download, trust
from tunefleet.client.call import Call, Emit, Flow, FlowRun, NextLine, OpenLines, Pause, Step, Stream, Work
from tunefleet.client.connection import Connection
from tunefleet.client.problems import exception_of
from tunefleet.client.throttle import Throttle
from tunefleet.errors import TunefleetError, UnreachableError

T = TypeVar("T")
BUSY = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Policy:
    """Retries and timeouts of a client.

    Args:
        patience_s: Seconds to retry a repeatable call while the server does not respond.
        refused_s: Upper limit of `patience_s` if the server is on this machine and no process listens on its port.
        connect_s: Connection timeout.
        read_s: Idle timeout of a response.
    """

    patience_s: float = 10.0
    refused_s: float | None = None
    connect_s: float = 5.0
    read_s: float = 60.0

    @property
    def timeout(self) -> httpx.Timeout:
        """The timeouts as httpx's type."""
        return httpx.Timeout(self.read_s, connect=self.connect_s)


class _Busy(Exception):
    """The server reported that it is temporarily unavailable."""

    def __init__(self, error: TunefleetError) -> None:
        super().__init__(str(error))
        self.error = error


def _options(connection: Connection, policy: Policy) -> dict[str, Any]:
    headers = {"Accept": "application/json"}
    if connection.key:
        headers["Authorization"] = f"Bearer {connection.key}"
    reaching = trust.options(connection.url)
    if connection.trust is not None:
        reaching["verify"] = connection.trust
    return {
        "base_url": f"{connection.url}/api/v1",
        "headers": headers,
        "timeout": policy.timeout,
        **reaching,
    }


def _request(client: httpx.Client | httpx.AsyncClient, call: Call[Any], content: Any) -> httpx.Request:
    headers = dict(call.headers)
    if call.body is not None:
        content = orjson.dumps(call.body.model_dump(mode="json"))
        headers.setdefault("Content-Type", "application/json")
    params = {name: _text(value) for name, value in call.params.items() if value is not None}
    request = client.build_request(call.method, call.path, params=params, content=content, headers=headers)
    if call.read_timeout_s is not None:
        request.extensions["timeout"] = {**request.extensions["timeout"], "read": call.read_timeout_s}
    return request


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _may_repeat(call: Call[Any]) -> Callable[[BaseException], bool]:
    def decide(error: BaseException) -> bool:
        if trust.lasting(error):
            return False
        # Without a connection nothing was sent, so even a call that is not idempotent can be retried.
        return isinstance(error, httpx.ConnectError) or (
            call.repeatable and isinstance(error, (httpx.TransportError, _Busy))
        )

    return decide


def _patience_over(policy: Policy, url: str) -> Callable[[RetryCallState], bool]:
    on_this_machine = httpx.URL(url).host in trust.LOOPBACK

    def decide(state: RetryCallState) -> bool:
        spent_s = state.seconds_since_start or 0.0
        error = state.outcome.exception() if state.outcome else None
        # On this machine the network is not the cause: the server is restarting or not running.
        if policy.refused_s is not None and on_this_machine and isinstance(error, httpx.ConnectError):
            return spent_s + state.upcoming_sleep >= min(policy.refused_s, policy.patience_s)
        return spent_s >= policy.patience_s

    return decide


def _retries(call: Call[Any], policy: Policy, url: str) -> dict[str, Any]:
    return {
        "retry": retry_if_exception(_may_repeat(call)),
        "stop": _patience_over(policy, url),
        "wait": wait_random_exponential(multiplier=0.2, max=2.0),
        "reraise": True,
    }


def _refuse(response: httpx.Response, body: bytes) -> None:
    """Raise the exception for an error response."""
    error = exception_of(response, body)
    if response.status_code in BUSY:
        raise _Busy(error)
    raise error


def _parsed(call: Call[T], body: bytes, url: str) -> T:
    try:
        return call.parse(body)
    except ValidationError as error:
        raise UnreachableError(
            f"{url} sent a response that this client cannot parse.",
            hint="The server may have another version; compare with `tunefleet doctor`.",
            detail=str(error),
        ) from error


@contextmanager
def _in_our_words(url: str) -> Iterator[None]:
    try:
        yield
    except _Busy as busy:
        raise busy.error from busy
    except httpx.TransportError as error:
        raise trust.explained(url, error) or _of_network(url, error) from error


def _of_network(url: str, error: httpx.TransportError) -> UnreachableError:
    if isinstance(error, httpx.ConnectError):
        return UnreachableError(
            f"No server responds at {url}.",
            hint="Start a server with `tunefleet up`, or log in to another one with `tunefleet login URL`.",
            detail=str(error),
        )
    if isinstance(error, httpx.TimeoutException):
        return UnreachableError(f"{url} did not respond in time.", hint="Try again.", detail=str(error))
    return UnreachableError(
        f"The connection to {url} was interrupted.", hint="Try again.", detail=f"{type(error).__name__}: {error}"
    )


class Transport:
    """Drives calls and flows in the calling thread; thread-safe.

    Args:
        connection: Server and key.
        policy: Retries and timeouts.
        network: Replaces the network in tests.
        throttle: Limits the transfer rate.
    """

    def __init__(
        self,
        connection: Connection,
        policy: Policy | None = None,
        network: httpx.BaseTransport | None = None,
        throttle: Throttle | None = None,
    ) -> None:
        self.connection = connection
        self.policy = policy or Policy()
        self._throttle = throttle
        self._network = network
        self._http = httpx.Client(**_options(connection, self.policy), transport=network)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def run(self, operation: Call[T] | Flow[T]) -> T:
        """Run a call or flow and return its result.

        Raises:
            TunefleetError: The server's error, or that it is unreachable.
        """
        if isinstance(operation, Call):
            return self._send(operation)
        run = FlowRun(operation)
        with closing(run), ExitStack() as stack:
            while run.step is not None:
                self._advance(run, stack)
        return run.result

    def iterate(self, stream: Stream[T]) -> Iterator[T]:
        """Yield what a stream emits."""
        run: FlowRun[T] = FlowRun(stream)
        with closing(run), ExitStack() as stack:
            while run.step is not None:
                if isinstance(run.step, Emit):
                    yield run.step.value
                    run.resume()
                else:
                    self._advance(run, stack)

    def _advance(self, run: FlowRun[Any], stack: ExitStack) -> None:
        try:
            answer = self._step(run.step, stack)
        except TunefleetError as error:
            run.fail(error)
        else:
            run.resume(answer)

    def _step(self, step: Step | Emit[Any] | None, stack: ExitStack) -> Any:
        match step:
            case Call():
                return self._send(step)
            case Pause(seconds):
                return time.sleep(seconds)
            case Work(run):
                return run()
            case OpenLines(call):
                return self._lines(call, stack)
            case NextLine(handle):
                with _in_our_words(self.connection.url):
                    return next(handle, None)  # type: ignore[call-overload]

    def _send(self, call: Call[T]) -> T:
        with _in_our_words(self.connection.url):
            for attempt in Retrying(**_retries(call, self.policy, self.connection.url)):
                with attempt:
                    return self._once(call)
        raise AssertionError("tenacity either returns or raises")

    def _once(self, call: Call[T]) -> T:
        throttle = self._throttle
        content = call.content() if call.content else None
        if throttle is not None and content is not None:
            content = throttle.paced(content)
        request = _request(self._http, call, content)
        if throttle is not None and content is None:
            throttle.take(len(request.content))
        response = self._http.send(request, stream=True)
        try:
            if call.sink is not None:
                sink = throttle.sink(call.sink) if throttle is not None else call.sink
                if (link := _begun(call, response)) is not None:
                    direct_download.fetch(link, sink, call.headers, self.policy.timeout, self._network)
                    return call.parse(b"")
                if response.is_success:
                    for piece in response.iter_bytes():
                        sink.write(piece)
                    return call.parse(b"")
            body = response.read()
        finally:
            response.close()
        if not response.is_success:
            _refuse(response, body)
        return _parsed(call, body, self.connection.url)

    def _lines(self, call: Call[None], stack: ExitStack) -> Iterator[str]:
        with _in_our_words(self.connection.url):
            for attempt in Retrying(**_retries(call, self.policy, self.connection.url)):
                with attempt:
                    response = self._http.send(_request(self._http, call, None), stream=True)
                    stack.callback(response.close)
                    if not response.is_success:
                        _refuse(response, response.read())
                    return response.iter_lines()
        raise AssertionError("tenacity either returns or raises")


def _begun(call: Call[Any], response: httpx.Response) -> httpx.URL | None:
    """Return the link in a response, if it redirects to the store; passes the headers to `Call.heard`."""
    link = direct_download.link_of(response)
    if call.heard is not None and (response.is_success or link is not None):
        call.heard(response.headers)
    return link


class AsyncTransport:
    """Drives calls and flows on the running event loop; arguments are those of `Transport`."""

    def __init__(
        self, connection: Connection, policy: Policy | None = None, network: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.connection = connection
        self.policy = policy or Policy()
        self._network = network
        self._http = httpx.AsyncClient(**_options(connection, self.policy), transport=network)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def run(self, operation: Call[T] | Flow[T]) -> T:
        """Run a call or flow and return its result.

        Raises:
            TunefleetError: The server's error, or that it is unreachable.
        """
        if isinstance(operation, Call):
            return await self._send(operation)
        run = FlowRun(operation)
        with closing(run):
            async with AsyncExitStack() as stack:
                while run.step is not None:
                    await self._advance(run, stack)
        return run.result

    async def iterate(self, stream: Stream[T]) -> AsyncIterator[T]:
        """Yield what a stream emits."""
        run: FlowRun[T] = FlowRun(stream)
        with closing(run):
            async with AsyncExitStack() as stack:
                while run.step is not None:
                    if isinstance(run.step, Emit):
                        yield run.step.value
                        run.resume()
                    else:
                        await self._advance(run, stack)

    async def _advance(self, run: FlowRun[Any], stack: AsyncExitStack) -> None:
        try:
            answer = await self._step(run.step, stack)
        except TunefleetError as error:
            run.fail(error)
        else:
            run.resume(answer)

    async def _step(self, step: Step | Emit[Any] | None, stack: AsyncExitStack) -> Any:
        match step:
            case Call():
                return await self._send(step)
            case Pause(seconds):
                return await asyncio.sleep(seconds)
            case Work(run):
                return await asyncio.to_thread(run)
            case OpenLines(call):
                return await self._lines(call, stack)
            case NextLine(handle):
                with _in_our_words(self.connection.url):
                    return await anext(handle, None)  # type: ignore[call-overload]

    async def _send(self, call: Call[T]) -> T:
        with _in_our_words(self.connection.url):
            async for attempt in AsyncRetrying(**_retries(call, self.policy, self.connection.url)):
                with attempt:
                    return await self._once(call)
        raise AssertionError("tenacity either returns or raises")

    async def _once(self, call: Call[T]) -> T:
        content = _from_thread(call.content()) if call.content else None
        response = await self._http.send(_request(self._http, call, content), stream=True)
        try:
            if call.sink is not None:
                if (link := _begun(call, response)) is not None:
                    await direct_download.fetch_async(link, call.sink, call.headers, self.policy.timeout, self._network)
                    return call.parse(b"")
                if response.is_success:
                    async for piece in response.aiter_bytes():
                        await asyncio.to_thread(call.sink.write, piece)
                    return call.parse(b"")
            body = await response.aread()
        finally:
            await response.aclose()
        if not response.is_success:
            _refuse(response, body)
        return _parsed(call, body, self.connection.url)

    async def _lines(self, call: Call[None], stack: AsyncExitStack) -> AsyncIterator[str]:
        with _in_our_words(self.connection.url):
            async for attempt in AsyncRetrying(**_retries(call, self.policy, self.connection.url)):
                with attempt:
                    response = await self._http.send(_request(self._http, call, None), stream=True)
                    stack.push_async_callback(response.aclose)
                    if not response.is_success:
                        _refuse(response, await response.aread())
                    return response.aiter_lines()
        raise AssertionError("tenacity either returns or raises")


async def _from_thread(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece
