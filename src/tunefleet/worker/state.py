"""The worker's own folder, `<results>/.worker/`: who it is, and which attempts it holds.

lock            locked by the one worker of this results folder     owner.json   its pid
worker_id       this worker's id, made once                          state_id     identity of this folder
attempts/<attempt id>.json   an attempt that was taken and not yet forgotten, with its token (mode 0600)
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout
from pydantic import ValidationError

from tunefleet.errors import MachineError, is_disk_full
from tunefleet.fsutil import remove_drafts, write_synced
from tunefleet.runtime.monitor.elapsed_time import Watched
from tunefleet.schemas.base import Message
from tunefleet.schemas.worker_link import Command, Offer

logger = logging.getLogger(__name__)

_FULL_PAUSE_S: Final = 5.0
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class AttemptRecord(Message):
    """An attempt that this worker holds.

    Args:
        launch: Id of the newest launch that was prepared; `None` before the first.
    """

    offer: Offer
    launch: str | None = None
    suspended: bool = False
    cancel_generation: int | None = None
    watched: Watched = Watched()
    commands: tuple[Command, ...] = ()
    point: str | None = None

    @property
    def attempt_id(self) -> str:
        """The public part of the token."""
        return self.offer.token.partition(".")[0]


class StateFolder:
    """The state of one worker; holds the folder's lock from `open` to `close`."""

    def __init__(self, results_dir: Path) -> None:
        self.results_dir = results_dir
        self.root = results_dir / ".worker"
        self._attempts = self.root / "attempts"
        self._owner = self.root / "owner.json"
        self._lock = FileLock(self.root / "lock")

    def open(self, *, pause: Callable[[float], bool] | None = None) -> bool:
        """Make the folder and take it.

        A worker that was here before waits for room on a full disk: what it holds is not given up for that.

        Args:
            pause: Lets so many seconds pass, and returns whether to try again; nothing is waited for if `None`.

        Returns:
            Whether it is taken; if not, `pause` has said that nobody wants it any more.

        Raises:
            MachineError: If it cannot be written, or another worker has it.
        """
        if self._taken(waits=pause is not None):
            return True
        assert pause is not None, "only who waits is told that it is not taken"
        logger.warning(
            "The disk of %s is full: the worker waits until there is room, and leaves what runs alone.",
            self.results_dir,
        )
        # It names the worker before.
        self._owner.unlink(missing_ok=True)
        while pause(_FULL_PAUSE_S):
            if self._taken(waits=True):
                return True
        return False

    def _taken(self, *, waits: bool) -> bool:
        """Take the folder; returns whether it is taken, or only its lock, for one that waits for room."""
        try:
            # Of parents `mkdir` would forget the mode. A results folder that is there keeps its own.
            for folder in (self.results_dir, self.root, self._attempts):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._lock.is_locked:
                self._lock.acquire(timeout=0)
            remove_drafts(self.root)
            remove_drafts(self._attempts)
            write_synced(self._owner, str(os.getpid()))
        except Timeout:
            raise MachineError(
                f"Another worker{self._owner_text()} already works in {self.results_dir}.",
                hint="Stop it, or give this one another folder with --results-dir.",
            ) from None
        except OSError as error:
            if waits and is_disk_full(error) and (self.root / "worker_id").exists():
                return False
            raise MachineError(
                f"The results folder {self.results_dir} cannot be written: {error.strerror or error}.",
                hint="Mend its permissions or free space, or choose another folder with --results-dir.",
            ) from error
        return True

    def close(self) -> None:
        """Let the folder go."""
        self._lock.release()

    @property
    def owner_pid(self) -> int | None:
        """Process id of the worker that opened the folder last; it heeds signals from then on."""
        try:
            return int(self._owner.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def heeded_by(self, pid: int | None) -> bool:
        """Whether a worker that was started on this folder heeds signals; one that waits for room does, too."""
        owner = self.owner_pid
        return owner == pid or (owner is None and (self.root / "worker_id").exists())

    def worker_id(self, wanted: str | None) -> str:
        """Return the worker's id: the wanted one, else the one of the last time, else a new one.

        Raises:
            MachineError: If the wanted id has characters that an id may not have.
        """
        if wanted is not None and not _ID.fullmatch(wanted):
            raise MachineError(
                f"WORKER_ID={wanted!r} cannot be an id.", hint="Use letters, digits, '.', '_' and '-', at most 64."
            )
        host = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname()).strip("-") or "worker"
        return self._once("worker_id", wanted or f"{host[:40]}-{secrets.token_hex(3)}", replace=wanted is not None)

    def state_id(self) -> str:
        """Return the identity of this folder, made at its first use."""
        return self._once("state_id", secrets.token_hex(16))

    def keep(self, record: AttemptRecord) -> None:
        """Write an attempt, synced: from here on the worker may say that it holds it."""
        write_synced(self._file(record.attempt_id), record.model_dump_json())

    def forget(self, attempt_id: str) -> None:
        """Remove an attempt that the server knows the end of."""
        self._file(attempt_id).unlink(missing_ok=True)

    def attempts(self) -> list[AttemptRecord]:
        """Read what an earlier process held; a record that cannot be read is named and set aside."""
        found = []
        for file in sorted(self._attempts.glob("[!.]*.json")):
            try:
                found.append(AttemptRecord.model_validate_json(file.read_bytes()))
            except FileNotFoundError:
                continue  # forgotten since the folder was listed
            except ValidationError as error:
                aside = file.with_suffix(".unreadable")
                logger.warning("The attempt in %s cannot be read; it is kept as %s: %s", file, aside.name, error)
                file.replace(aside)
        return found

    def _file(self, attempt_id: str) -> Path:
        if not _ID.fullmatch(attempt_id):
            raise MachineError(f"The server sent an attempt id that cannot be one: {attempt_id!r}.")
        return self._attempts / f"{attempt_id}.json"

    def _once(self, name: str, value: str, *, replace: bool = False) -> str:
        file = self.root / name
        if not replace and file.exists() and (known := file.read_text(encoding="utf-8").strip()):
            return known
        write_synced(file, value)
        return value

    def _owner_text(self) -> str:
        pid = self.owner_pid
        return "" if pid is None else f" (pid {pid})"
