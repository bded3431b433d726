"""Lets several answers be made side by side on one model, a token of each in turn."""

from __future__ import annotations

import threading


class Turns:
    """A lock that is handed on in the order of asking, and can be offered in between."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next = 0
        self._served = 0

    def take(self) -> None:
        """Wait for the turn."""
        with self._changed:
            ticket = self._next
            self._next += 1
            while self._served != ticket:
                self._changed.wait()

    def give(self) -> None:
        """End the turn."""
        with self._changed:
            self._served += 1
            self._changed.notify_all()

    def offer(self) -> bool:
        """Let everybody who waits go first; returns at once, with false, if nobody does."""
        with self._changed:
            if self._next == self._served + 1:
                return False
        self.give()
        self.take()
        return True
