"""Passes messages from the server threads to the training thread, at the same step on every rank.

Messages wait for the end of a step. With several ranks, only rank 0 has them; `trainer_control.distributed` decides one
horizon ahead at which step all ranks handle them.
"""

from __future__ import annotations

import threading
import uuid
from typing import Any, Final

from tunefleet.trainer_control.control.command_queue import Command, CommandQueue

# A version has been downloaded: `version`.
VERSION: Final = "version"
# The federation uses FedProx: `mu`.
PULL: Final = "pull"
# The server has accepted more rows of this run than its checkpoint knows of: up to row `rows`.
TAKEN: Final = "taken"
# The server refuses this worker: `text`; `over` if the federation has completed.
REFUSED: Final = "refused"


class Mailbox(CommandQueue):
    """A command queue for messages of a federation, which are not job commands."""

    def __init__(self) -> None:
        super().__init__()
        self._arrived = threading.Condition(self._lock)
        self._hurried = False

    def submit(self, command: str, data: dict[str, Any] | None = None, command_id: str | None = None) -> Command:
        """Add a message for the end of the current step."""
        item = Command(command_id or uuid.uuid4().hex, command, dict(data or {}))
        with self._lock:
            self._waiting.append(item)
            self.armed = True
            self._arrived.notify_all()
        return item

    def wait(self, timeout_s: float) -> list[Command]:
        """Wait for messages and return them; returns an empty list after the timeout or a call of `hurry`."""
        with self._arrived:
            self._arrived.wait_for(lambda: bool(self._waiting) or self._hurried, timeout_s)
            self._hurried = False
            return self.take()

    def hurry(self) -> None:
        """End the current wait, or the next one if there is none."""
        with self._lock:
            self._hurried = True
            self._arrived.notify_all()

    def adopt(self, item: Command) -> Command:
        """Return a message that was decided on another rank, unchanged."""
        return item
