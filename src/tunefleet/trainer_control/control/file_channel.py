"""Command files, for a job without a port; `tunefleet.schemas.control` describes their content.

A thread checks the modification time of one folder four times a second and reads the folder only when it changed. It
never touches the training run: commands go to the queue, and an invalid file gets an outcome with the reason.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

from .. import files
from ..files import write_json
from .command_queue import ClosedError, Command, CommandQueue, UnknownCommandError

logger = logging.getLogger("tunefleet.control")

POLL_S = 0.25
MAX_FILE_BYTES = 64 << 10
_OUTCOME = ".outcome.json"


class FileChannel:
    """Watches `control/` of an endpoint folder.

    Args:
        board: The command queue.
    """

    def __init__(self, folder: Path, board: CommandQueue) -> None:
        self.folder = folder / "control"
        self._board = board
        self._stop = threading.Event()
        self._answering = threading.Lock()
        self._names: dict[str, str] = {}
        self._seen: set[str] = set()
        self._changed_at = -1.0

    def start(self) -> None:
        """Fail command files from before this process, and watch from now on.

        Raises:
            OSError: If the folder cannot be created.
        """
        # A command of an earlier process was meant for that one.
        self.folder.mkdir(mode=0o700, exist_ok=True)
        for name in self._waiting():
            self._refuse(name, "the training had not started")
        self._board.listen(self._answer)
        watch = (self._stop, POLL_S, self._look, "The control folder cannot be read", logger)
        threading.Thread(target=files.until, args=watch, name="tunefleet-control-files", daemon=True).start()
        logger.debug("Commands are read from files in %s", self.folder)

    def stop(self) -> None:
        """Check a last time, so that no command stays without an outcome, and end."""
        if not self._stop.is_set():
            self._stop.set()
            self._look(anyway=True)

    def _look(self, *, anyway: bool = False) -> None:
        changed_at = self.folder.stat().st_mtime
        # A file written within the clock's granularity of the last check would not change the time again.
        settled = time.time() - changed_at > 1.0
        if changed_at == self._changed_at and settled and not anyway:
            return
        for name in self._waiting():
            self._take(name)
        self._changed_at = changed_at

    def _waiting(self) -> list[str]:
        names = sorted(entry.name for entry in os.scandir(self.folder) if entry.name.endswith(".json"))
        answered = {name.removesuffix(_OUTCOME) for name in names if name.endswith(_OUTCOME)}
        stems = (name.removesuffix(".json") for name in names if not name.endswith(_OUTCOME) and name[0] != ".")
        return [stem for stem in stems if stem not in answered and stem not in self._seen]

    def _take(self, name: str) -> None:
        # Also for a file that fails, or it would be read again at every poll.
        self._seen.add(name)
        try:
            command, data, command_id = _parts(self._read(name), name)
            # Before submit: the queue publishes the first state from within it.
            self._names[command_id] = name
            item = self._board.submit(command, data, command_id)
        except UnknownCommandError as unknown:
            self._refuse(name, f"unknown command {unknown}")
        except (ClosedError, ValueError, OSError) as error:
            self._refuse(name, str(error))
        else:
            logger.debug("Took %s from %s.json", item.command, name)
            self._answer(item)

    def _read(self, name: str) -> Any:
        # O_NOFOLLOW and O_NONBLOCK: a link or a FIFO in the folder must neither redirect nor block the thread.
        fd = os.open(self.folder / f"{name}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid not in (os.geteuid(), 0):
                raise ValueError("it is not a file of the user who runs the training")
            if facts.st_size > MAX_FILE_BYTES:
                raise ValueError(f"it has more than {MAX_FILE_BYTES} bytes")
            try:
                return json.loads(file.read(MAX_FILE_BYTES + 1), parse_constant=_no_number)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"it is not JSON: {error}") from None

    def _answer(self, item: Command) -> None:
        name = self._names.get(item.command_id)
        if name is not None:
            fields = ("command_id", "command", "state", "step", "checkpoint", "message")
            # Two threads write outcomes; an older state must not replace a newer one.
            with self._answering:
                self._write(name, {field: getattr(item, field) for field in fields})

    def _refuse(self, name: str, message: str) -> None:
        logger.warning("The command file %s.json is refused: %s", name, message)
        self._seen.add(name)
        self._write(name, {"command_id": name, "command": name.rpartition("_")[0], "state": "failed", "step": None,
                           "checkpoint": None, "message": message})  # fmt: skip

    def _write(self, name: str, outcome: dict[str, Any]) -> None:
        try:
            write_json(self.folder / f"{name}{_OUTCOME}", {**outcome, "at": time.time()})
        except OSError as error:
            logger.warning("The outcome of %s could not be written: %s", name, error)


def _parts(body: Any, name: str) -> tuple[str, dict[str, Any], str]:
    fields = body if isinstance(body, dict) else {}
    parts = fields.get("command"), fields.get("data") or {}, fields.get("command_id") or name
    for part, kind in zip(parts, (str, dict, str), strict=True):
        if not isinstance(part, kind):
            raise ValueError("it must be an object with a `command`, and may have `data` and `command_id`")  # noqa: TRY004
    return parts  # type: ignore[return-value]


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
