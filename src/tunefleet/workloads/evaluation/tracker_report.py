"""Progress of an evaluation, reported to the journal."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from tunefleet.trainer_control import JobSession

PHASE: Final = "evaluating"


class Progress:
    """Reports the number of finished items over all evaluations of a task."""

    def __init__(self, session: JobSession, check_commands: Callable[[int], None]) -> None:
        self._session = session
        self._check_commands = check_commands
        self._before = self._total = 0
        self._began, self._done_then = time.monotonic(), 0

    def start(self, total: int, done: int) -> None:
        """Begin with the items of the next evaluation."""
        self._before += self._total
        self._total = total
        self._began, self._done_then = time.monotonic(), done
        self.tell(done)

    def tell(self, done: int) -> None:
        """Report the number of finished items of this evaluation."""
        elapsed, new = time.monotonic() - self._began, done - self._done_then
        eta = elapsed / new * (self._total - done) if new > 0 else None
        step, of = self._before + done, self._before + self._total
        self._session.journal.progress(PHASE, step=step, max_steps=of, eta_s=eta)
        self._session.status.update(step=step, max_steps=of, phase=PHASE)
        self._check_commands(step)


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Disable progress bars, which are for terminals: the log would have thousands of them.

    The variable TQDM_DISABLE is not enough: callers that pass `disable`, as lm-eval does, override it.
    """
    bar = importlib.import_module("tqdm.std").tqdm
    original_init = bar.__init__

    def hidden(self: Any, *given: Any, **options: Any) -> None:
        original_init(self, *given, **{**options, "disable": True})

    bar.__init__ = hidden
    try:
        yield
    finally:
        bar.__init__ = original_init
