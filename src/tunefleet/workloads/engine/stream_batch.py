"""Continuous batching of streams: rows that arrive join the running batch, and rows that have ended leave it.

The batch runs in rounds. A round ends early to admit or release rows; the next one computes the prompts and answers so
far again, so it has a minimum length.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tunefleet.workloads.engine.batch_rows import Row

logger = logging.getLogger(__name__)

# Steps of a round before it may end early: they outweigh the computation of the prompts.
_MIN_STEPS: Final = 16


@dataclass(slots=True)
class StreamedRow:
    """A row whose answer is streamed.

    Args:
        gone: Whether its client has disconnected.
        after_step: Called after each token.
        ended: Called once at the end, with the error if there is one.
    """

    row: Row
    gone: Callable[[], bool]
    after_step: Callable[[], None]
    ended: Callable[[BaseException | None], None]


@dataclass(slots=True)
class Round:
    """A round of a batch: its callback after each step, and whether it ends early."""

    rows: list[StreamedRow]
    may_admit: Callable[[], bool]
    steps: int = 0

    def after_step(self) -> None:
        """Pass on the new tokens, and end the rows without clients."""
        self.steps += 1
        for each in self.rows:
            if each.row.finish is None and each.gone():
                each.row.abort()
            each.after_step()

    def is_over(self) -> bool:
        """Return whether the round ends now."""
        if self.steps < _MIN_STEPS:
            return False
        finished = sum(each.row.finish is not None for each in self.rows)
        return 2 * finished >= len(self.rows) or self.may_admit()


class StreamBatch:
    """The streams of one adapter. Thread-safe.

    Args:
        run: Runs a round; raises if it cannot.
        fit: Returns how many of some rows fit into memory, at least one.
        shrink: Called if a round ran out of memory with this number of rows; returns whether a smaller one may fit.
    """

    def __init__(
        self,
        run: Callable[[Round], None],
        fit: Callable[[list[Row]], int],
        shrink: Callable[[BaseException, int], bool],
    ) -> None:
        self._run = run
        self._fit = fit
        self._shrink = shrink
        self._lock = threading.Lock()
        self._waiting: list[StreamedRow] = []
        self._running = False

    def add(self, streamed: StreamedRow) -> None:
        """Add a row; its callbacks are called from another thread."""
        streamed.row.begin()
        with self._lock:
            self._waiting.append(streamed)
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._work, name="streams", daemon=True).start()

    def _work(self) -> None:
        while (rows := self._next()) is not None:
            try:
                self._run(Round(rows, lambda: self._has_room(len(rows))))
            except BaseException as error:  # noqa: BLE001 -- raised again by the readers of the streams
                if not self._shrink(error, len(rows)):
                    for each in rows:
                        each.ended(error)
                    continue
            left = [each for each in rows if each.row.finish is None]
            for each in rows:
                if each.row.finish is not None:
                    each.ended(None)
            with self._lock:
                # At the front: they continue before later ones begin.
                self._waiting[:0] = left

    def _next(self) -> list[StreamedRow] | None:
        with self._lock:
            if not self._waiting:
                self._running = False
                return None
            longest_first = sorted((each.row for each in self._waiting), key=lambda row: -len(row.prompt))
            count = self._fit(longest_first)
            rows, self._waiting = self._waiting[:count], self._waiting[count:]
            return rows

    def _has_room(self, running: int) -> bool:
        with self._lock:
            if not self._waiting:
                return False
            return self._fit([each.row for each in self._waiting[:1]] * (running + 1)) > running
