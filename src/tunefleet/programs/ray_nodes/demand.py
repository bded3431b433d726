"""How many tasks wait: what workers beyond the least are started for."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Final
from urllib.error import URLError

_ASK_S: Final = 10.0
_TIMEOUT_S: Final = 10.0


class Demand:
    """Asks the server now and then.

    Args:
        server: Its address. Without one nothing waits.
        key: One that may read tasks.
        most: More than this many are not counted.
    """

    def __init__(self, server: str, key: str, most: int) -> None:
        self._server = server.rstrip("/")
        self._key = key
        self._most = most
        self._next = 0.0
        self._waiting = 0

    def waiting(self) -> int:
        """Return how many tasks were in the queue a moment ago; what was known last if the server does not answer."""
        now = time.monotonic()
        if self._server and now >= self._next:
            self._next = now + _ASK_S
            try:
                self._waiting = self._ask()
            except (URLError, TimeoutError, ValueError, KeyError) as error:
                print(f"The server does not say how many tasks wait: {error}", flush=True)
        return self._waiting

    def _ask(self) -> int:
        asked = urllib.request.Request(  # noqa: S310 -- the server that its cluster names
            f"{self._server}/api/v1/tasks?status=queued&limit={self._most}",
            headers={"Authorization": f"Bearer {self._key}"},
        )
        with urllib.request.urlopen(asked, timeout=_TIMEOUT_S) as answer:  # noqa: S310 -- as above
            return len(json.loads(answer.read())["items"])
