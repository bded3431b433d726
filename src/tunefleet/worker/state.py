"""The worker's state folder, `<results>/.worker/`: its identity, and the attempts that it holds.

lock            locked by the only worker of this results folder    owner.json   its pid
worker_id       the worker's id, generated once                      state_id     identity of this folder
attempts/<attempt id>.json   a held attempt with its token (mode 0600)
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
from tunefleet.validation_errors import summary

logger = logging.getLogger(__name__)

_FULL_PAUSE_S: Final = 5.0
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class AttemptRecord(Message):
    """An attempt that this worker holds.

    Args:
        launch: Id of the newest prepared launch; None before the first.
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
        """Create and lock the folder.

        On a full disk, a worker with an existing state folder waits for space instead of losing its attempts.

        Args:
            pause: Sleeps for some seconds, and returns whether to retry; without it, a full disk is an error.

        Returns:
            Whether it is locked; False if `pause` has ended the retries.

        Raises:
            MachineError: If it is not writable, or another worker has locked it.
        """
        if self._lock_folder(waits=pause is not None):
            return True
        assert pause is not None, "_lock_folder returns False only if it may wait"
        logger.warning(
            "The disk of %s is full: waiting for free space. Running jobs are not affected.",
            self.results_dir,
        )
        # It has the pid of the previous worker.
        self._owner.unlink(missing_ok=True)
        while pause(_FULL_PAUSE_S):
            if self._lock_folder(waits=True):
                return True
        return False

    def _lock_folder(self, *, waits: bool) -> bool:
        """Lock and prepare the folder; False if the disk is full and the worker may wait (the lock is held then)."""
        try:
            # One by one: `mkdir(parents=True)` ignores the mode for parents. An existing results folder keeps its mode.
            for folder in (self.results_dir, self.root, self._attempts):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._lock.is_locked:
                self._lock.acquire(timeout=0)
            remove_drafts(self.root)
            remove_drafts(self._attempts)
            write_synced(self._owner, str(os.getpid()))
        except Timeout:
            raise MachineError(
                f"Another worker{self._owner_text()} already uses {self.results_dir}.",
                hint="Stop it, or set a different folder with --results-dir.",
            ) from None
        except OSError as error:
            if waits and is_disk_full(error) and (self.root / "worker_id").exists():
                return False
            raise MachineError(
                f"The results folder {self.results_dir} cannot be written: {error.strerror or error}.",
                hint="Fix its permissions or free space, or set a different folder with --results-dir.",
            ) from error
        return True

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    @property
    def owner_pid(self) -> int | None:
        """Process id of the worker that opened the folder last; it handles signals from then on."""
        try:
            return int(self._owner.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def heeded_by(self, pid: int | None) -> bool:
        """Whether a worker started on this folder handles signals; one that waits for disk space does, too."""
        owner = self.owner_pid
        return owner == pid or (owner is None and (self.root / "worker_id").exists())

    def worker_id(self, wanted: str | None) -> str:
        """Return the worker's id: the given one, else the stored one, else a new one.

        Raises:
            MachineError: If the given id has invalid characters.
        """
        if wanted is not None and not _ID.fullmatch(wanted):
            raise MachineError(
                f"TUNEFLEET_WORKER_ID={wanted!r} is not a valid ID.",
                hint="Use at most 64 letters, digits, '.', '_' and '-'.",
            )
        host = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname()).strip("-") or "worker"
        return self._once("worker_id", wanted or f"{host[:40]}-{secrets.token_hex(3)}", replace=wanted is not None)

    def state_id(self) -> str:
        """Return the identity of this folder, generated at its first use."""
        return self._once("state_id", secrets.token_hex(16))

    def keep(self, record: AttemptRecord) -> None:
        """Store an attempt."""
        # Synced: after this the worker may report that it holds the attempt, even across a power failure.
        write_synced(self._file(record.attempt_id), record.model_dump_json())

    def forget(self, attempt_id: str) -> None:
        """Remove an attempt whose end the server has stored."""
        self._file(attempt_id).unlink(missing_ok=True)

    def attempts(self) -> list[AttemptRecord]:
        """Read the attempts of an earlier process; an unreadable record is logged and renamed."""
        records = []
        for file in sorted(self._attempts.glob("[!.]*.json")):
            try:
                records.append(AttemptRecord.model_validate_json(file.read_bytes()))
            except FileNotFoundError:
                continue  # forgotten since the folder was listed
            except ValidationError as error:
                aside = file.with_suffix(".unreadable")
                logger.warning(
                    "Could not read the attempt in %s; keeping it as %s: %s", file, aside.name, summary(error)
                )
                file.replace(aside)
        return records

    def _file(self, attempt_id: str) -> Path:
        if not _ID.fullmatch(attempt_id):
            raise MachineError(f"The server sent a malformed attempt id: {attempt_id!r}.")
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
