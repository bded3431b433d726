"""Client of the fork server: starts it, and requests job starts from it.

Importing the training libraries takes seconds; the fork server does it once for all workers and agents of this user
with the same import environment. On any error the result is None, and the job starts cold.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import select
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunefleet.errors import MachineError
from tunefleet.runtime.environment import SERVER_ENV, at_import
from tunefleet.trainer_control import process_identity

logger = logging.getLogger(__name__)

IMPORT_S = 60.0
_BIND_S = 15.0
_LEAVE_S = 2.0
# The path of a Unix socket is limited to 108 bytes on Linux, 104 on macOS.
_MAX_PATH_BYTES = 100
# Then jobs start cold: each failed try would delay a job.
_MAX_FAILURES = 3


class WarmStarter:
    """Requests job starts from the fork server of this user, interpreter and import environment."""

    def __init__(self, base_env: Mapping[str, str], *, idle_s: float) -> None:
        self._base_env = dict(base_env)
        self._idle_s = idle_s
        self._failures = 0
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self.socket_path = socket_folder() / f"{self._key()}.sock"

    def prepare(self) -> None:
        """Start the server unless one is already listening; returns before its imports are done."""
        with self._lock:
            connection = self._connect()
            if connection is not None:
                connection.close()
            elif self._server is None or self._server.poll() is not None:
                self._server = self._spawn()

    def start(self, folder: Path) -> dict[str, Any] | None:
        """Start a job; returns the reply of its parent process, or None if the job must start cold."""
        if self._failures >= _MAX_FAILURES:
            return None
        connection, reply = self._reach(), None
        if connection is not None:
            with connection:
                reply = self._ask(connection, {"folder": str(folder), "environment": self._base_env})
        if reply is None or reply.get("code") == "stale":
            self._failures += 1
            why = reply.get("message") if reply else "it does not respond"
            logger.warning("Fork server unavailable: %s", why)
            return None
        self._failures = 0
        return reply

    def server_pid(self) -> int | None:
        """Return the pid of the listening server, if it belongs to this user."""
        connection = self._connect()
        if connection is None:
            return None
        with connection:
            return _pid_of(connection)

    def close(self) -> None:
        """Release the server, which ends unless other processes use it. Its forked jobs keep running."""
        with self._lock:
            connection = self._connect()
            if connection is None:
                return
            with connection:
                # It does not respond during its imports; it reads this afterwards, and ends then.
                pid, reply = _pid_of(connection), self._ask(connection, {"leaves": True}, _LEAVE_S)
            if pid is None or reply is None or not reply.get("ends"):
                return
            started_at = process_identity.process_started_at(pid)
            deadline = time.monotonic() + 5.0
            while started_at is not None and process_identity.process_started_at(pid) == started_at:
                if time.monotonic() > deadline:
                    logger.warning("The fork server (pid %s) does not exit", pid)
                    return
                time.sleep(0.02)

    def _key(self) -> str:
        text = json.dumps([sys.prefix, sys.version, sorted(at_import(self._base_env).items())])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _spawn(self) -> subprocess.Popen[bytes]:
        arguments = [str(self.socket_path), str(self._idle_s), str(os.getpid())]
        command = [sys.executable, "-P", "-m", "tunefleet.runtime.warm.fork_server", *arguments]
        with self.socket_path.with_suffix(".log").open("wb") as log:
            server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**at_import(self._base_env), **SERVER_ENV},
                start_new_session=True,
                cwd="/",
            )
        threading.Thread(target=server.wait, name=f"forkserver-{server.pid}", daemon=True).start()
        return server

    def _reach(self) -> socket.socket | None:
        try:
            self.prepare()
        except OSError as error:
            logger.warning("Cannot start the fork server: %s", error)
            return None
        return self._wait_for_server()

    def _wait_for_server(self) -> socket.socket | None:
        deadline = time.monotonic() + _BIND_S
        while (connection := self._connect()) is None:
            dead = self._server is None or self._server.poll() is not None
            if dead or time.monotonic() > deadline:
                return None
            time.sleep(0.02)
        return connection

    def _connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(self.socket_path))
        except OSError:
            connection.close()
            return None
        return connection

    def _ask(
        self, connection: socket.socket, what: dict[str, Any], patience_s: float = IMPORT_S
    ) -> dict[str, Any] | None:
        try:
            connection.sendall(json.dumps({**what, "idle_s": self._idle_s}).encode() + b"\n")
            return read_reply(connection.fileno(), patience_s)
        except (OSError, ValueError) as error:
            logger.debug("The fork server closed the connection: %s", error)
            return None


def _pid_of(connection: socket.socket) -> int | None:
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid if uid == os.geteuid() else None


def socket_folder() -> Path:
    """Return this user's private folder for sockets.

    Raises:
        MachineError: If it is not a private folder of this user.
    """
    name = f"tunefleet-{os.geteuid()}"
    folder = Path(tempfile.gettempdir()) / name
    if len(os.fsencode(folder)) > _MAX_PATH_BYTES - 32:
        folder = Path("/tmp") / name  # noqa: S108 -- checked below to be private to this user
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise MachineError(f"{folder} must be a private folder of this user (mode 0700).", hint="Remove it.")
    return folder


def read_reply(fd: int, timeout_s: float) -> dict[str, Any] | None:
    """Return the reply, or None on a timeout or if the connection was closed."""
    text, deadline = b"", time.monotonic() + timeout_s
    while not text.endswith(b"\n"):
        if not select.select([fd], [], [], max(deadline - time.monotonic(), 0))[0]:
            return None
        chunk = os.read(fd, 4096)
        if not chunk:
            return None
        text += chunk
    reply: dict[str, Any] = json.loads(text)
    return reply
