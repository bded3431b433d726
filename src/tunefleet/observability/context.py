"""What a line of the log belongs to: ids that are set once, where work on a thing begins, and cost nothing to carry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

from tunefleet.observability.traceparent import Place

# The ids that lines may have.
NAMES: Final = ("request_id", "trace_id", "task_id", "attempt", "worker_id", "job_id")
_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_ids: ContextVar[Mapping[str, str]] = ContextVar("tunefleet_log_ids", default=_NONE)
_later: ContextVar[Callable[[], Mapping[str, str]] | None] = ContextVar("tunefleet_log_ids_later", default=None)
_parent: ContextVar[Place | None] = ContextVar("tunefleet_parent_span", default=None)
_process: dict[str, str] = {}


def ids() -> Mapping[str, str]:
    """Return what the line that is about to be written belongs to."""
    later = _later.get()
    return {**_process, **(later() if later is not None else _NONE), **_ids.get()}


@contextmanager
def about(**known: str | int | None) -> Iterator[None]:
    """Let the lines that are written in the body have ids; those that are null are left as they are."""
    mark = _ids.set({**_ids.get(), **{name: str(value) for name, value in known.items() if value is not None}})
    try:
        yield
    finally:
        _ids.reset(mark)


@contextmanager
def about_later(look: Callable[[], Mapping[str, str]]) -> Iterator[None]:
    """Let the lines of the body have ids that are known only when a line is written."""
    mark = _later.set(look)
    try:
        yield
    finally:
        _later.reset(mark)


@contextmanager
def within(parent: Place | None) -> Iterator[None]:
    """Let what the body stores belong to the trace of whoever asked for it."""
    mark = _parent.set(parent)
    try:
        yield
    finally:
        _parent.reset(mark)


def parent() -> Place | None:
    """Return the span of whoever asked for what is done now."""
    return _parent.get()


def about_process(**known: str) -> None:
    """Let every line of this process have ids, whichever thread writes it."""
    _process.update(known)
