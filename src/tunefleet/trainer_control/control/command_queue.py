"""Commands between the control server's threads and the training thread.

The training thread reads one attribute a step (`armed`); only when it is true does it take the lock. Each command has
a state that can be asked for, also after the process ended: `commands.json` in the job folder holds them, which makes
a command that is delivered twice act once.
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
"""The document's fifth: taken like the others, and there is nothing to do; what it asks for is read by `GET`."""
# Those that are done when their checkpoint is durable; the others are done when they are applied.
SAVING = ("save_checkpoint", "save_and_stop", "pause")


# Exit code of a script whose training was aborted: what its caller does after a good end must not follow.
ABORTED = 9


class UnknownCommandError(Exception):
    """There is no such command."""


class ClosedError(Exception):
    """The training takes no commands any more."""


@dataclass
class Command:
    """A command and what became of it.

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


class CommandBoard:
    """Where commands wait for the end of a step.

    Args:
        folder: The job folder, if outcomes are to outlive the process.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.armed = False
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
        """Take a command for the end of the running step; one that is already known is returned as it is.

        Raises:
            UnknownCommandError: If there is no such command.
            ValueError: If the data of a `set` is none that can be carried out.
            ClosedError: If the training has ended; the text says why.
        """
        if command not in (*COMMANDS, STATUS):
            raise UnknownCommandError(command)
        if command == "set":
            check_changes(data or {})
        with self._lock:
            known = self._known.get(command_id) if command_id else None
            # A pause that is asked for again, though an earlier process has seen its end, did not hold: that process
            # was killed, or launched again, before anybody had heard of it.
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
            self._tell(item)
            self.armed = bool(self._waiting)
        return item

    def listen(self, listener: Callable[[Command], None]) -> None:
        """Call `listener` with each command that is taken or changes, in the thread that changes it."""
        with self._lock:
            self._listeners.append(listener)

    def take(self) -> list[Command]:
        """Return the waiting commands, oldest first, and forget that they wait."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self.armed = False
        return waiting

    def adopt(self, item: Command) -> Command:
        """Return this rank's own record of a command that was decided on another one; it does not wait here."""
        with self._lock:
            return self._known.setdefault(item.command_id, item)

    def wants(self, command: str) -> bool:
        """Tell whether such a command is waiting, without taking it."""
        with self._lock:
            return any(item.command == command for item in self._waiting)

    def applied(self, command_id: str, step: int, *, saving: bool = False, message: str | None = None) -> None:
        """Record that a command acted at a step; with `saving` it becomes durable with that step's checkpoint."""
        with self._lock:
            if saving:
                self._saving.append(command_id)
            self._change(command_id, state="applied", step=step, message=message)

    def take_saving(self) -> list[str]:
        """Return the commands that the checkpoint which was just written answers."""
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
        """Take commands (again): a training has begun."""
        with self._lock:
            self._closed = None

    def close(self, message: str) -> None:
        """Refuse further commands; what still waits has failed with this message. The first reason stays."""
        with self._lock:
            message = self._closed = self._closed or message
            self.take()
            # Those that were decided for a later step, or whose save never came, are not answered any more either.
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
        self._tell(item)

    def _tell(self, item: Command) -> None:
        self._store()
        for listener in self._listeners:
            listener(item)

    def _store(self) -> None:
        if self._file is None:
            return
        try:
            write_json(self._file, {"commands": [asdict(item) for item in self._known.values()]})
        except OSError as error:
            # The training must not end for it; whoever asks now is still told.
            logger.warning("The outcome of a command could not be written down: %s", error)

    def _load(self, file: Path) -> None:
        names = {field.name for field in fields(Command)}
        for stored in (read_json(file) or {}).get("commands", []):
            item = Command(**{name: value for name, value in stored.items() if name in names})
            unfinished = item.state == "pending" or (item.state == "applied" and item.command in SAVING)
            if unfinished:
                item.state, item.message = "failed", "the process ended before it was done"
            self._known[item.command_id] = item
            if item.state in ("durable", "failed"):
                self._earlier.add(item.command_id)
