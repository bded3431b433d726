"""Commands between the control server's threads and the training thread.

The training thread reads one attribute per step (`armed`) and takes the lock only when it is true. Each command has a
state that can be queried, also after the process ended: it is stored in `commands.json` of the job folder, so that a
command that is delivered twice acts once.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..files import read_json, write_json
from .overrides import check_changes

logger = logging.getLogger("tunefleet.control")

COMMANDS = ("graceful_stop", "save_checkpoint", "save_and_stop", "abort", "pause", "evaluate", "set")
STATUS = "status"
"""The fifth command of the published protocol: accepted, but without effect; its answer is read by `GET`."""
# Commands that are done when their checkpoint is durable; the others are done when they are applied.
SAVING = ("save_checkpoint", "save_and_stop", "pause")


# Exit code of an aborted script: steps that follow a successful exit in its caller must not run.
ABORTED = 9


class UnknownCommandError(Exception):
    """There is no such command."""


class ClosedError(Exception):
    """The training run takes no commands any more."""


@dataclass
class Command:
    """A command and its outcome.

    Args:
        state: `pending`, then `applied` at its step, `durable` when its checkpoint has a manifest, or `failed`.
    """

    command_id: str
    command: str
    data: dict[str, Any] = field(default_factory=dict)
    state: str = "pending"
    step: int | None = None
    checkpoint: str | None = None
    message: str | None = None
    at: float = 0.0


class CommandQueue:
    """Queue of commands that wait for the end of a step.

    Args:
        folder: The job folder, if outcomes are kept after the process ends.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.armed = False
        # Reentrant: a listener may query the queue while a change is published.
        self._file = folder / "commands.json" if folder else None
        self._lock = threading.RLock()
        self._closed: str | None = None
        self._waiting: list[Command] = []
        self._known: dict[str, Command] = {}
        self._earlier: set[str] = set()
        self._saving: list[str] = []
        self._listeners: list[Callable[[Command], None]] = []
        if self._file is not None:
            self._load(self._file)

    def submit(self, command: str, data: dict[str, Any] | None = None, command_id: str | None = None) -> Command:
        """Queue a command for the end of the running step; a known `command_id` returns the existing command.

        Raises:
            UnknownCommandError: If there is no such command.
            ValueError: If the data of a `set` is invalid.
            ClosedError: If the training run has ended; the text holds the reason.
        """
        if command not in (*COMMANDS, STATUS):
            raise UnknownCommandError(command)
        if command == "set":
            check_changes(data or {})
        with self._lock:
            known = self._known.get(command_id) if command_id else None
            # A pause that is repeated after an earlier process recorded its outcome did not take effect: that process
            # was killed or relaunched before its supervisor read the outcome.
            unheard = known is not None and known.command == "pause" and known.command_id in self._earlier
            if known is not None and not unheard:
                return known
            self._earlier.discard(command_id or "")
            if self._closed is not None:
                raise ClosedError(self._closed)
            item = Command(command_id or f"cmd-{uuid.uuid4().hex[:12]}", command, dict(data or {}), at=time.time())
            self._known[item.command_id] = item
            if command == STATUS:
                item.state = "applied"
            else:
                self._waiting.append(item)
            self._publish(item)
            self.armed = bool(self._waiting)
        return item

    def listen(self, listener: Callable[[Command], None]) -> None:
        """Call `listener` with each command that is submitted or changes, in the thread that changes it."""
        with self._lock:
            self._listeners.append(listener)

    def take(self) -> list[Command]:
        """Return the queued commands, oldest first, and empty the queue."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self.armed = False
        return waiting

    def adopt(self, item: Command) -> Command:
        """Return this rank's record of a command that was decided on another rank; it is not queued."""
        with self._lock:
            return self._known.setdefault(item.command_id, item)

    def wants(self, command: str) -> bool:
        """Return whether such a command is queued, without taking it."""
        with self._lock:
            return any(item.command == command for item in self._waiting)

    def applied(self, command_id: str, step: int, *, saving: bool = False, message: str | None = None) -> None:
        """Record that a command acted at a step; with `saving` it becomes durable with that step's checkpoint."""
        with self._lock:
            if saving:
                self._saving.append(command_id)
            self._change(command_id, state="applied", step=step, message=message)

    def take_saving(self) -> list[str]:
        """Return the commands that the checkpoint just written completes."""
        with self._lock:
            saving, self._saving = self._saving, []
        return saving

    def durable(self, command_id: str, checkpoint: str) -> None:
        """Record that a command's checkpoint has its manifest."""
        with self._lock:
            self._change(command_id, state="durable", checkpoint=checkpoint)

    def failed(self, command_id: str, message: str) -> None:
        """Record that a command could not be carried out."""
        with self._lock:
            self._change(command_id, state="failed", message=message)

    def open(self) -> None:
        """Accept commands (again): a training run has begun."""
        with self._lock:
            self._closed = None

    def close(self, message: str) -> None:
        """Reject further commands; queued ones fail with this message. The first reason stays."""
        with self._lock:
            message = self._closed = self._closed or message
            self.take()
            # Commands decided for a later step, or whose save never happened, fail as well.
            pending = [item.command_id for item in self._known.values() if item.state == "pending"]
            for command_id in [*pending, *self.take_saving()]:
                self._change(command_id, state="failed", message=message)

    def state(self, command_id: str) -> Command | None:
        """Return a command by its id."""
        with self._lock:
            return self._known.get(command_id)

    def _change(self, command_id: str, **changes: Any) -> None:
        item = self._known[command_id]
        for name, value in changes.items():
            setattr(item, name, value)
        self._publish(item)

    def _publish(self, item: Command) -> None:
        self._store()
        for listener in self._listeners:
            listener(item)

    def _store(self) -> None:
        if self._file is None:
            return
        try:
            write_json(self._file, {"commands": [asdict(item) for item in self._known.values()]})
        except OSError as error:
            # Must not end the training run; queries of the running process still get the answer.
            logger.warning("The outcome of a command could not be recorded: %s", error)

    def _load(self, file: Path) -> None:
        names = {field.name for field in fields(Command)}
        for stored in (read_json(file) or {}).get("commands", []):
            item = Command(**{name: value for name, value in stored.items() if name in names})
            unfinished = item.state == "pending" or (item.state == "applied" and item.command in SAVING)
            # The new process cannot finish what the old one had begun; a client may send the command again.
            if unfinished:
                item.state, item.message = "failed", "the process ended before it was done"
            self._known[item.command_id] = item
            if item.state in ("durable", "failed"):
                self._earlier.add(item.command_id)
