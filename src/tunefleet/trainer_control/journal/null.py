"""A journal that writes nothing: for a control callback without a job folder, and for ranks other than 0."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from .. import files
from .writer import Probe

logger = logging.getLogger("tunefleet.control")

_TICK_S = 0.2
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Journal(Protocol):
    """The interface that the callbacks report to; see `journal.JournalWriter`."""

    launch: str | None

    def metric(
        self,
        step: int,
        values: Mapping[str, Any],
        *,
        series: str = ...,
        epoch: float | None = ...,
        window: tuple[int, int] | None = ...,
    ) -> None:
        """Record logged values."""

    def progress(self, phase: str, *, probe: Probe | None = ..., **fields: float | None) -> None:
        """Record progress."""

    def event(self, name: str, message: str, level: str = ..., data: Mapping[str, Any] | None = ...) -> None:
        """Record an event for the user."""

    def checkpoint(self, step: int, name: str, digest: str, size_bytes: int, stall_s: float = ...) -> None:
        """Record that a checkpoint has its manifest."""

    def prediction(self, step: int, index: int, prompt: str, output: str, reference: str | None = ...) -> None:
        """Record text that the model generated."""

    def sync(self) -> None:
        """Make all records durable."""

    def close(self) -> None:
        """Sync and end."""


class NullJournal:
    """Writes nothing; events go to the log.

    Args:
        on_tick: Called a few times a second by a thread, as `JournalWriter` does; None starts no thread.
        log_events: Whether events are logged; only rank 0 does.
    """

    launch: str | None = None

    def __init__(self, on_tick: Callable[[], None] | None = None, *, log_events: bool = True) -> None:
        self._log_events = log_events
        self._stop = threading.Event()
        if on_tick is not None:
            tick = (self._stop, _TICK_S, on_tick, "The status cannot be written", logger)
            threading.Thread(target=files.until, args=tick, name="tunefleet-status", daemon=True).start()

    def metric(
        self,
        step: int,
        values: Mapping[str, Any],
        *,
        series: str = "train",
        epoch: float | None = None,
        window: tuple[int, int] | None = None,
    ) -> None:
        """Discard values."""

    def progress(self, phase: str, *, probe: Probe | None = None, **fields: float | None) -> None:
        """Discard progress."""

    def event(self, name: str, message: str, level: str = "info", data: Mapping[str, Any] | None = None) -> None:
        """Log an event."""
        if self._log_events:
            logger.log(_LEVELS.get(level, logging.INFO), "%s: %s", name, message)

    def checkpoint(self, step: int, name: str, digest: str, size_bytes: int, stall_s: float = 0.0) -> None:
        """Log a checkpoint."""
        if self._log_events:
            logger.info("%s is durable (%d bytes)", name, size_bytes)

    def prediction(self, step: int, index: int, prompt: str, output: str, reference: str | None = None) -> None:
        """Discard a prediction."""

    def sync(self) -> None:
        """Do nothing: there is nothing to sync."""

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
