"""A journal for those who keep none: a bare control callback, and the ranks that do not report."""

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
    """What the callbacks report to; see `journal.JournalWriter`."""

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
        """Record values that were logged."""

    def progress(self, phase: str, *, probe: Probe | None = ..., **fields: float | None) -> None:
        """Record where the training stands."""

    def event(self, name: str, message: str, level: str = ..., data: Mapping[str, Any] | None = ...) -> None:
        """Record what a person wants to see."""

    def checkpoint(self, step: int, name: str, digest: str, size_bytes: int, stall_s: float = ...) -> None:
        """Record that a checkpoint has its manifest."""

    def prediction(self, step: int, index: int, prompt: str, output: str, reference: str | None = ...) -> None:
        """Record text that the model wrote."""

    def sync(self) -> None:
        """Make durable what was recorded."""

    def close(self) -> None:
        """Sync and end."""


class QuietJournal:
    """Keeps nothing; events go to the log.

    Args:
        on_tick: Called a few times a second by a thread of its own, as a journal's writer does; None needs no thread.
        log_events: Whether events are logged; one of several ranks does.
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
        """Drop values."""

    def progress(self, phase: str, *, probe: Probe | None = None, **fields: float | None) -> None:
        """Drop where the training stands."""

    def event(self, name: str, message: str, level: str = "info", data: Mapping[str, Any] | None = None) -> None:
        """Log what happened."""
        if self._log_events:
            logger.log(_LEVELS.get(level, logging.INFO), "%s: %s", name, message)

    def checkpoint(self, step: int, name: str, digest: str, size_bytes: int, stall_s: float = 0.0) -> None:
        """Log a checkpoint."""
        if self._log_events:
            logger.info("%s is durable (%d bytes)", name, size_bytes)

    def prediction(self, step: int, index: int, prompt: str, output: str, reference: str | None = None) -> None:
        """Drop a prediction."""

    def sync(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
