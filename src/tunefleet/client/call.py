"""What a client wants done, as plain values: calls, steps, flows and streams.

A `Call` is one HTTP request and how its answer is read. A `Flow` is a generator that yields steps and returns a
result; a `Stream` yields `Emit` steps too. Neither knows whether it is driven by a thread or by an event loop, so that
the synchronous and the asynchronous client share every line of logic. Opens no socket.
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
    """Where the body of an answer goes, piece by piece."""

    def write(self, data: bytes, /) -> object:
        """Take the next piece."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One HTTP request below `/api/v1`.

    Args:
        path: Path below `/api/v1`, made by `path`.
        parse: Reads the body of a good answer.
        params: Query; `None` values are left out.
        content: Makes a raw body anew for each try.
        headers: Headers beside those of the client.
        repeatable: Whether sending it twice does no more than sending it once; only then it is tried again.
        sink: Takes the body of a good answer instead of `parse`, which then gets an empty one.
        heard: Is told the headers of a good answer with a `sink`, before its body.
        read_timeout_s: Silence after which the answer is given up; the client's own limit if `None`.
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
    """Run something that blocks: hashing, reading a folder. An event loop gives it to a thread."""

    run: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class OpenLines:
    """Open an answer that stays open; the driver answers with a handle."""

    call: Call[None]


@dataclass(frozen=True, slots=True)
class NextLine:
    """Read a line from a handle; the driver answers with the line, or `None` at the end."""

    handle: object


@dataclass(frozen=True, slots=True)
class Emit(Generic[T]):
    """Hand a value to whoever iterates."""

    value: T


Step: TypeAlias = Call[Any] | Pause | Work | OpenLines | NextLine
Flow: TypeAlias = Generator[Step, Any, T]
Stream: TypeAlias = Generator[Step | Emit[T], Any, None]


class Course(Generic[T]):
    """A flow or a stream on its way: the step to do next (`None` at its end), and then its result."""

    def __init__(self, generator: Flow[T] | Stream[T]) -> None:
        self._generator: Generator[Any, Any, Any] = generator
        self._result: T | None = None
        self.step: Step | Emit[T] | None = None
        self.resume()

    @property
    def result(self) -> T:
        """What the flow returned."""
        return self._result  # type: ignore[return-value]

    def resume(self, answer: object = None) -> None:
        """Give the answer to the last step."""
        self._go(lambda: self._generator.send(answer))

    def fail(self, error: Exception) -> None:
        """Raise within the flow, at the step that failed; it may go on."""
        self._go(lambda: self._generator.throw(error))

    def close(self) -> None:
        """End the flow wherever it stands."""
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
    """Run something that blocks from within a flow."""
    answer: T = yield Work(run)
    return answer


def path(*segments: str) -> str:
    """Join path segments, each escaped."""
    return "/" + "/".join(quote(segment, safe="") for segment in segments)


@lru_cache(maxsize=128)
def _adapter(shape: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(Any, shape))


def model(shape: type[T]) -> Callable[[bytes], T]:
    """Return a parser of a JSON body into a model of `wire.api`."""

    def parse(body: bytes) -> T:
        value: T = _adapter(cast(Hashable, shape)).validate_json(body)
        return value

    return parse


def nothing(body: bytes) -> None:
    """Parse an answer whose body does not matter."""
