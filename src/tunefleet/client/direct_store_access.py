"""What a worker's process knows of the way to the server's object store."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from tunefleet.errors import UnreachableError

logger = logging.getLogger(__name__)
AGAIN_S: Final = 600.0
"""So long a store that could not be reached is not tried again."""


class Unreached(UnreachableError):
    """The object store cannot be reached, or refuses what the server has signed."""


class StoreReach:
    """Shared by all attempts of one process, so that each of them need not find out by itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._away_until = 0.0

    @property
    def away(self) -> bool:
        """Whether the store was out of reach a while ago."""
        with self._lock:
            return time.monotonic() < self._away_until

    def lose(self, why: str) -> None:
        """Note that the store is out of reach; the log is told once."""
        with self._lock:
            told, self._away_until = time.monotonic() < self._away_until, time.monotonic() + AGAIN_S
        if not told:
            logger.warning("Files pass through the server for %.0f minutes: %s", AGAIN_S / 60, why)
