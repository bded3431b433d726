"""Ids in log lines: set once where work on a request or task begins, carried in context variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

from tunefleet.observability.traceparent import SpanContext

# The ids that log lines may have.
NAMES: Final = ("request_id", "trace_id", "task_id", "attempt", "worker_id", "job_id")
_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_ids: ContextVar[Mapping[str, str]] = ContextVar("tunefleet_log_ids", default=_NONE)
_lazy_ids: ContextVar[Callable[[], Mapping[str, str]] | None] = ContextVar("tunefleet_log_ids_later", default=None)
_parent: ContextVar[SpanContext | None] = ContextVar("tunefleet_parent_span", default=None)
_process: dict[str, str] = {}


def ids() -> Mapping[str, str]:
    """Return the ids for the next log line."""
    lazy = _lazy_ids.get()
    return {**_process, **(lazy() if lazy is not None else _NONE), **_ids.get()}


@contextmanager
def log_ids(**known: str | int | None) -> Iterator[None]:
    """Add ids to the log lines of the body; ids that are `None` are not changed."""
    token = _ids.set({**_ids.get(), **{name: str(value) for name, value in known.items() if value is not None}})
    try:
        yield
    finally:
        _ids.reset(token)


@contextmanager
def lazy_log_ids(look: Callable[[], Mapping[str, str]]) -> Iterator[None]:
    """Add ids to the log lines of the body that are known only when a line is written."""
    token = _lazy_ids.set(look)
    try:
        yield
    finally:
        _lazy_ids.reset(token)


@contextmanager
def parent_span(parent: SpanContext | None) -> Iterator[None]:
    """Set the parent span for the body."""
    token = _parent.set(parent)
    try:
        yield
    finally:
        _parent.reset(token)


def parent() -> SpanContext | None:
    """Return the current parent span."""
    return _parent.get()


def process_log_ids(**known: str) -> None:
    """Add ids to all log lines of this process, in all threads."""
    # Not a context variable: its value would not reach new threads.
    _process.update(known)
