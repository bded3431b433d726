"""Ids in log lines, and the W3C `traceparent` with span ids that processes derive independently of each other.

A span id is a digest of what the span stands for (a task, an attempt, a launch). A process can therefore name a parent
span that another process records, and after a crash the same span is recorded again instead of a second one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

_FORM: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16
_SAMPLED: Final = 1
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


@dataclass(frozen=True, slots=True)
class SpanContext:
    """A span context: trace id, span id, and whether it is sampled."""

    trace_id: str
    span_id: str
    sampled: bool = True

    @property
    def traceparent(self) -> str:
        """The value of the `traceparent` header."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"

    def span(self, name: str) -> SpanContext:
        """Return a span of this trace by name."""
        return SpanContext(self.trace_id, _digest(f"{self.trace_id}/{name}", 16), self.sampled)


def read_traceparent(text: str | None) -> SpanContext | None:
    """Parse a `traceparent`; `None` if it is invalid, since the standard requires to ignore it then."""
    match = _FORM.fullmatch(text.strip()) if text else None
    # Version 00 has no further fields; later versions may append some.
    if match is None or (text and text.startswith("00-") and match[4]):
        return None
    trace_id, span_id = match[1], match[2]
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return SpanContext(trace_id, span_id, bool(int(match[3], 16) & _SAMPLED))


def of_task(task_id: str, parent: SpanContext | None = None) -> SpanContext:
    """Return the span of a task: in the trace of the caller that submitted it, or as the root of its own trace."""
    if parent is not None:
        return parent.span(f"task {task_id}")
    return SpanContext(_digest(f"tunefleet trace of {task_id}", 32), _NO_SPAN).span(f"task {task_id}")


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
