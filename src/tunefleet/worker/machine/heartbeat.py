"""Reports the load of the machine periodically. The lease does not depend on it: every exchange renews that."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from tunefleet.schemas.worker_link import Load
from tunefleet.worker.outbox import Outbox

logger = logging.getLogger(__name__)

_JOIN_S: Final = 5.0


class Heartbeat:
    """Reads the load in its own thread, immediately and then every interval."""

    def __init__(self, outbox: Outbox, read: Callable[[], Load], interval_s: float) -> None:
        self._outbox = outbox
        self._read = read
        self._interval_s = interval_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while True:
            try:
                self._outbox.load(self._read())
            except OSError as error:
                logger.warning("Could not read the load of this machine: %s", error)
            if self._over.wait(self._interval_s):
                return
