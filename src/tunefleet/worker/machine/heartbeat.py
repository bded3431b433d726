"""Tells the server now and then how busy the machine is. The lease does not hang on it: each exchange renews that."""

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
    """Reads the load in a thread of its own, at once and then every interval."""

    def __init__(self, outbox: Outbox, read: Callable[[], Load], interval_s: float) -> None:
        self._outbox = outbox
        self._read = read
        self._interval_s = interval_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while True:
            try:
                self._outbox.load(self._read())
            except OSError as error:
                logger.warning("The load of this machine cannot be read: %s", error)
            if self._over.wait(self._interval_s):
                return
