"""API methods for both clients: a method returns its result on a synchronous client, an awaitable on an async one.

class TaskVerbs:
    get = Verb(routes.get_task)

class Tasks(TaskVerbs, Blocking): ...        # tasks.get("task-1")        -> TaskDetail
class AsyncTasks(TaskVerbs, Awaited): ...    # await tasks.get("task-1")  -> TaskDetail
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from tunefleet.client.call import Call, Flow, Stream
from tunefleet.client.transport import AsyncTransport, Transport

P = ParamSpec("P")
T = TypeVar("T")


class Blocking:
    """Base of objects with a synchronous transport."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport


class Awaited:
    """Base of objects with an asynchronous transport."""

    def __init__(self, transport: AsyncTransport) -> None:
        self.transport = transport


class _Described:
    """Descriptor with the name and documentation of the wrapped function."""

    def __init__(self, describe: Callable[..., Any]) -> None:
        self.describe = describe
        self.__doc__ = describe.__doc__

    def bind(self, do: Callable[[Any], Any], *bound: Any) -> Any:
        def method(*args: Any, **kwargs: Any) -> Any:
            return do(self.describe(*bound, *args, **kwargs))

        return update_wrapper(method, self.describe)


class ApiMethod(_Described, Generic[P, T]):
    """A method that runs one call or flow."""

    def __init__(self, describe: Callable[P, Call[T] | Flow[T]]) -> None:
        super().__init__(describe)

    @overload
    def __get__(self, owner: Blocking, cls: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, owner: Awaited, cls: type) -> Callable[P, Awaitable[T]]: ...
    @overload
    def __get__(self, owner: None, cls: type) -> ApiMethod[P, T]: ...
    def __get__(self, owner: Blocking | Awaited | None, cls: type) -> Any:
        """Bind to a client."""
        return self if owner is None else self.bind(owner.transport.run)


class Iteration(_Described, Generic[P, T]):
    """A method that returns an iterator over a stream."""

    def __init__(self, describe: Callable[P, Stream[T]]) -> None:
        super().__init__(describe)

    @overload
    def __get__(self, owner: Blocking, cls: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, owner: Awaited, cls: type) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, owner: None, cls: type) -> Iteration[P, T]: ...
    def __get__(self, owner: Blocking | Awaited | None, cls: type) -> Any:
        """Bind to a client."""
        return self if owner is None else self.bind(owner.transport.iterate)


class OfTask:
    """Base of objects for one task."""

    task_id: str


class BlockingTask(Blocking, OfTask):
    """One task with a synchronous transport."""


class AwaitedTask(Awaited, OfTask):
    """One task with an asynchronous transport."""


class TaskVerb(_Described, Generic[P, T]):
    """A method of one task: the wrapped function's first argument is the task's id."""

    def __init__(self, describe: Callable[Concatenate[str, P], Call[T] | Flow[T]]) -> None:
        super().__init__(describe)

    @overload
    def __get__(self, owner: BlockingTask, cls: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, owner: AwaitedTask, cls: type) -> Callable[P, Awaitable[T]]: ...
    @overload
    def __get__(self, owner: None, cls: type) -> TaskVerb[P, T]: ...
    def __get__(self, owner: BlockingTask | AwaitedTask | None, cls: type) -> Any:
        """Bind to a task."""
        return self if owner is None else self.bind(owner.transport.run, owner.task_id)


class TaskIteration(_Described, Generic[P, T]):
    """A method of one task that returns an iterator over a stream."""

    def __init__(self, describe: Callable[Concatenate[str, P], Stream[T]]) -> None:
        super().__init__(describe)

    @overload
    def __get__(self, owner: BlockingTask, cls: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, owner: AwaitedTask, cls: type) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, owner: None, cls: type) -> TaskIteration[P, T]: ...
    def __get__(self, owner: BlockingTask | AwaitedTask | None, cls: type) -> Any:
        """Bind to a task."""
        return self if owner is None else self.bind(owner.transport.iterate, owner.task_id)
