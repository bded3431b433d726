"""What a client can do, as plain values: calls, steps, flows and streams.

A `Call` is one HTTP request and the parser of its response. A `Flow` is a generator that yields steps and returns a
result; a `Stream` also yields `Emit` steps. Neither knows whether a thread or an event loop drives it, so that the
synchronous and the asynchronous client share all logic. Opens no socket.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter

T = TypeVar("T")
Scalar: TypeAlias = str | int | float | bool
Params: TypeAlias = Mapping[str, Scalar | None]


class Sink(Protocol):
    """Receives a response body in pieces."""

    def write(self, data: bytes, /) -> object:
        """Write the next piece."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One HTTP request below `/api/v1`.

    Args:
        path: Path below `/api/v1`, made by `path`.
        parse: Parses the body of a successful response.
        params: Query parameters; `None` values are omitted.
        content: Creates a new raw body for each try.
        headers: Headers in addition to those of the client.
        repeatable: Whether the request is idempotent; only then it is retried.
        sink: Receives the body of a successful response instead of `parse`, which then gets an empty one.
        heard: Called with the headers of a successful response with a `sink`, before its body.
        read_timeout_s: Idle timeout of the response; the client's own limit if `None`.
    """

    method: str
    path: str
    parse: Callable[[bytes], T]
    params: Params = field(default_factory=dict)
    body: BaseModel | None = None
    content: Callable[[], Iterator[bytes]] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    sink: Sink | None = None
    heard: Callable[[Mapping[str, str]], None] | None = None
    read_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait, in seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """Run a blocking function (hashing, reading a folder); an event loop runs it in a thread."""

    run: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class OpenLines:
    """Open a streaming response; the driver returns a handle."""

    call: Call[None]


@dataclass(frozen=True, slots=True)
class NextLine:
    """Read a line from a handle; the driver returns the line, or `None` at the end."""

    handle: object


@dataclass(frozen=True, slots=True)
class Emit(Generic[T]):
    """Yield a value to the caller's iteration."""

    value: T


Step: TypeAlias = Call[Any] | Pause | Work | OpenLines | NextLine
Flow: TypeAlias = Generator[Step, Any, T]
Stream: TypeAlias = Generator[Step | Emit[T], Any, None]


class FlowRun(Generic[T]):
    """A running flow or stream: the next step (`None` at its end), and then its result."""

    def __init__(self, generator: Flow[T] | Stream[T]) -> None:
        self._generator: Generator[Any, Any, Any] = generator
        self._result: T | None = None
        self.step: Step | Emit[T] | None = None
        self.resume()

    @property
    def result(self) -> T:
        """The flow's return value."""
        return self._result  # type: ignore[return-value]

    def resume(self, answer: object = None) -> None:
        """Pass the result of the last step to the flow."""
        self._go(lambda: self._generator.send(answer))

    def fail(self, error: Exception) -> None:
        """Raise an error in the flow, at the step that failed; the flow may handle it."""
        self._go(lambda: self._generator.throw(error))

    def close(self) -> None:
        """End the flow at its current step."""
        self._generator.close()

    def _go(self, advance: Callable[[], Any]) -> None:
        try:
            self.step = advance()
        except StopIteration as end:
            self.step, self._result = None, end.value


def ask(call: Call[T]) -> Flow[T]:
    """Send a call from within a flow.

    For example: `task = yield from ask(get_task(task_id))`.
    """
    answer: T = yield call
    return answer


def work(run: Callable[[], T]) -> Flow[T]:
    """Run a blocking function from within a flow."""
    answer: T = yield Work(run)
    return answer


def path(*segments: str) -> str:
    """Join path segments, each escaped."""
    return "/" + "/".join(quote(segment, safe="") for segment in segments)


@lru_cache(maxsize=128)
def _adapter(shape: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(Any, shape))


def model(shape: type[T]) -> Callable[[bytes], T]:
    """Return a parser of a JSON body into a schema model."""

    def parse(body: bytes) -> T:
        value: T = _adapter(cast(Hashable, shape)).validate_json(body)
        return value

    return parse


def nothing(body: bytes) -> None:
    """Ignore the response body."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event of a stream."""

    event: str
    data: str
    id: str


@dataclass(slots=True)
class SseReader:
    """Takes lines without line ends, and returns an event when it is complete."""

    last_id: str = ""
    _event: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, line: str) -> ServerEvent | None:
        """Parse a line; an empty one ends an event."""
        if not line:
            return self._finish()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._data.append(value)
            case "event":
                self._event = value
            case "id":
                self.last_id = value
        return None

    def _finish(self) -> ServerEvent | None:
        event = ServerEvent(self._event or "message", "\n".join(self._data), self.last_id) if self._data else None
        self._event, self._data = "", []
        return event
