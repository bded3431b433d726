"""From the threads that talk to the server to the thread that trains, and on to the same step on every rank.

What arrives waits for the end of a step. With several ranks, rank 0 alone has it; `trainer_control.distributed` decides
one horizon ahead at which step all of them take it.
"""

from __future__ import annotations

import threading
import uuid
from typing import Any, Final

from tunefleet.trainer_control.control.command_queue import Command, CommandBoard

# A version is here: `version`.
VERSION: Final = "version"
# The federation wants a pull towards the global adapter: `mu`.
PULL: Final = "pull"
# The server counts more of this training than its checkpoint knows of: up to row `rows`.
TAKEN: Final = "taken"
# It refuses this worker: `text`; `over` if it has only come to its end.
REFUSED: Final = "refused"


class Mailbox(CommandBoard):
    """A board for a federation's own words, which are none of a job's commands."""

    def __init__(self) -> None:
        super().__init__()
        self._arrived = threading.Condition(self._lock)
        self._hurried = False

    def submit(self, command: str, data: dict[str, Any] | None = None, command_id: str | None = None) -> Command:
        """Leave something for the end of the running step."""
        item = Command(command_id or uuid.uuid4().hex, command, dict(data or {}))
        with self._lock:
            self._waiting.append(item)
            self.armed = True
            self._arrived.notify_all()
        return item

    def wait(self, timeout_s: float) -> list[Command]:
        """Return what waits here, as soon as there is something; nothing if the time is over, or somebody hurries."""
        with self._arrived:
            self._arrived.wait_for(lambda: bool(self._waiting) or self._hurried, timeout_s)
            self._hurried = False
            return self.take()

    def hurry(self) -> None:
        """End the wait, or the next one if nobody waits."""
        with self._lock:
            self._hurried = True
            self._arrived.notify_all()

    def adopt(self, item: Command) -> Command:
        """Return what was decided on another rank, as it is."""
        return item
