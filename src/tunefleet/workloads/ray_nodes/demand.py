"""Number of waiting tasks, for which additional workers are started."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Final
from urllib.error import URLError
from urllib.parse import urlencode

from tunefleet.integrations.clusters.base import NodeRequest
from tunefleet.integrations.clusters.ray_order import KEY, SERVER

_ASK_S: Final = 10.0
_TIMEOUT_S: Final = 10.0


class Demand:
    """Polls the server.

    Args:
        ask: The workers' order; its options hold the server, and a key that may read tasks. Without a server the demand
            is zero.
    """

    def __init__(self, ask: NodeRequest) -> None:
        self._server = ask.options.get(SERVER, "").rstrip("/")
        self._key = ask.options.get(KEY, "")
        self._query = urlencode(_sort(ask))
        self._next = 0.0
        self._waiting = 0

    def waiting(self) -> int:
        """Return how many workers of this pool the queue needs.

        If the server does not respond, the last known number is returned.
        """
        now = time.monotonic()
        if self._server and now >= self._next:
            self._next = now + _ASK_S
            try:
                self._waiting = self._ask()
            except (URLError, TimeoutError, ValueError, KeyError) as error:
                print(f"Cannot read the demand from the server: {error}", flush=True)
        return self._waiting

    def _ask(self) -> int:
        asked = urllib.request.Request(  # noqa: S310 -- the server that its cluster names
            f"{self._server}/api/v1/tasks/demand?{self._query}",
            headers={"Authorization": f"Bearer {self._key}"},
        )
        with urllib.request.urlopen(asked, timeout=_TIMEOUT_S) as answer:  # noqa: S310 -- as above
            return int(json.loads(answer.read())["workers"])


def _sort(ask: NodeRequest) -> dict[str, str | int]:
    """Return the query that describes the workers; their ids begin with the name of the job."""
    return {
        "pool": ask.name,
        "cpu": ask.cpu,
        "memory_bytes": ask.memory_bytes,
        "gpu_count": ask.gpu_count,
        "tags": ask.environment.get("TUNEFLEET_WORKER_TAGS", ""),
        "allow_code": ask.environment.get("TUNEFLEET_ALLOW_CODE", "false"),
    }
