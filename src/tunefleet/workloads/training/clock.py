"""How long the parts of a launch take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Adds up how long the parts of a launch take."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._parts: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure what runs inside."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._parts[name] = self._parts.get(name, 0.0) + time.monotonic() - started

    def seconds(self) -> dict[str, float]:
        """Return the parts and the total so far, in seconds."""
        total = time.monotonic() - self._started
        return {f"{name}_s": round(value, 3) for name, value in [*self._parts.items(), ("total", total)]}
