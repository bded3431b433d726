"""Work that goes on beside the training, in a thread of its own, whatever becomes of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable


def until(stop: threading.Event, every_s: float, work: Callable[[], None], trouble: str, log: logging.Logger) -> None:
    """Do a piece of work every so often, until an event is set; returns then.

    A failure ends nothing: it is tried again, and told once until it has worked in between.

    Args:
        stop: Ends it.
        every_s: Seconds before each time.
        work: What to do.
        trouble: Half a sentence for the log, such as `The folder cannot be read`.
        log: Told of a failure.
    """
    complained = False
    while not stop.wait(every_s):
        try:
            work()
            complained = False
        except Exception:
            if not complained:
                log.exception("%s; trying again", trouble)
            complained = True
