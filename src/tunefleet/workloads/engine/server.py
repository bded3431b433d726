"""The engine process: loads one model and answers clients of the same user.

Run as `python -m tunefleet.workloads.engine.server BASE IDLE_S`, with its description as JSON on standard input. It
exits after `IDLE_S` seconds without connections, if memory is low while there are none, on request, and when its socket
has been deleted.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import psutil

from tunefleet.runtime import locks
from tunefleet.trainer_control import process_identity
from tunefleet.trainer_control.files import write_json
from tunefleet.workloads.common.base_model import locate
from tunefleet.workloads.engine import protocol
from tunefleet.workloads.engine.protocol import Engine, EngineModel
from tunefleet.workloads.engine.rpc import ClientConnection

logger = logging.getLogger(__name__)

LOG_BYTES: Final = 4 << 20
_POLL_S: Final = 0.25
# Fraction of free main memory below which an idle engine exits.
_LOW_MEMORY: Final = 0.05
# How long a failed engine waits for clients that connect, to report the error to them.
_FAREWELL_S: Final = 5.0
# How long a previous engine that has deleted its socket may take to exit.
_PARTING_S: Final = 10.0


class Host:
    """One engine and its connections."""

    def __init__(self, listener: socket.socket, about: dict[str, Any], base: Path, idle_s: float) -> None:
        self._listener = listener
        self._base = base
        self._idle_s = idle_s
        self.model = protocol.model_of(about["model"])
        self._gpus = tuple(about["gpus"])
        self.digest = protocol.model_digest(self.model)
        self.loaded = threading.Event()
        self.engine: Engine | None = None
        self.failure: dict[str, Any] | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._connected = 0
        self._ever_connected = False
        self._quiet_since = time.monotonic()
        self._listeners: list[Callable[[str], None]] = []
        self._code = 0

    def serve(self) -> int:
        """Load the model and answer until the engine ends; returns the exit code."""
        # Connections are accepted before the model is loaded: clients wait for it instead of starting another engine.
        threading.Thread(target=self._accept, name="accept", daemon=True).start()
        try:
            self.engine = open_engine(self.model, gpus=self._gpus, say=self.say)
        except Exception as error:
            logger.exception("%s cannot be loaded", self.model.identifier)
            self.failure = protocol.failure_of(error)
        self.loaded.set()
        if self.failure is not None:
            # Clients that are waiting get the error, also if loading failed before they connected. Later ones start
            # another engine.
            deadline = time.monotonic() + _FAREWELL_S
            while (self.connected or not self._ever_connected) and time.monotonic() < deadline:
                time.sleep(0.02)
            return 1
        self._quiet_since = time.monotonic()
        while not self._ended.wait(_POLL_S):
            reason = self._end_reason()
            _bound_log(self._base.with_suffix(".log"))
            if reason is not None and self.leave():
                logger.info("The engine ends: %s", reason)
        return self._code

    @property
    def connected(self) -> int:
        """The number of open connections."""
        with self._lock:
            return self._connected

    def leave(self, *, besides: int = 0) -> bool:
        """End the engine if there are no connections besides these; returns whether it ends."""
        with self._lock:
            if self._connected > besides:
                return False
            # Under the lock: a client that connects from now on finds no socket and starts another engine.
            self._base.with_suffix(".sock").unlink(missing_ok=True)
            self._connected += 1
        self._ended.set()
        return True

    def fall(self) -> None:
        """End the broken engine, even with open connections; clients start another one."""
        self._base.with_suffix(".sock").unlink(missing_ok=True)
        self._code = 1
        self._ended.set()

    def say(self, sentence: str) -> None:
        """Send a message to all clients that wait for answers."""
        logger.warning("%s", sentence)
        # Sent outside the lock: a slow client must not block connecting and disconnecting.
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            try:
                listener(sentence)
            except OSError as error:
                logger.info("A client has disconnected: %s", error)

    def listen_to(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Add a listener for messages; returns a function that removes it."""
        with self._lock:
            self._listeners.append(listener)

        def end() -> None:
            with self._lock:
                self._listeners.remove(listener)

        return end

    def _end_reason(self) -> str | None:
        with self._lock:
            quiet_s = 0.0 if self._connected else time.monotonic() - self._quiet_since
            if self._connected:
                return None
        if quiet_s >= self._idle_s:
            return f"no connections for {quiet_s:.0f} s"
        if not self._base.with_suffix(".sock").exists():
            return "its socket was deleted"
        memory = psutil.virtual_memory()
        return "low memory" if memory.available < _LOW_MEMORY * memory.total else None

    def _accept(self) -> None:
        while True:
            connection = self._listener.accept()[0]
            with self._lock:
                self._connected += 1
                self._ever_connected = True
            threading.Thread(target=self._handle, args=(connection,), name="connection", daemon=True).start()

    def _handle(self, connection: socket.socket) -> None:
        try:
            with connection:
                ClientConnection(self, connection).run()
        except OSError as error:
            logger.info("A connection was lost: %s", error)
        except Exception:
            # Top level of the thread: an error in one connection must not end the engine.
            logger.exception("A connection failed")
        finally:
            with self._lock:
                self._connected -= 1
                self._quiet_since = time.monotonic()


def _bound_log(path: Path) -> None:
    """Truncate a log that has become too long to its end."""
    try:
        if path.stat().st_size <= LOG_BYTES:
            return
        with path.open("r+b") as log:
            log.seek(-LOG_BYTES // 2, os.SEEK_END)
            rest = log.read()
            # Writers have the file open in append mode, so they continue after the remaining text.
            log.truncate(0)
            log.seek(0)
            log.write(rest)
    except OSError as error:
        logger.debug("The log cannot be shortened: %s", error)


def _end(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(0)


def main(arguments: list[str]) -> int:
    """Run the engine until it ends.

    Args:
        arguments: Path of its files without suffix, and the idle time in seconds.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    base, idle_s = Path(arguments[0]), float(arguments[1])
    about: dict[str, Any] = json.load(sys.stdin.buffer)
    lock_fd = locks.take(base.with_suffix(".lock"), patience_s=_PARTING_S)
    if lock_fd is None:
        return 0  # another engine is running
    # Otherwise a child process of a library would hold the lock after the engine has ended.
    os.set_inheritable(lock_fd, False)
    signal.signal(signal.SIGTERM, _end)
    address = base.with_suffix(".sock")
    address.unlink(missing_ok=True)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(address))
            facts = {
                "pid": os.getpid(),
                "process_started_at": process_identity.process_started_at(os.getpid()),
                "boot_id": process_identity.boot_id(),
                "gpus": about["gpus"],
                "site": about["site"],
                "model": about["model"]["identifier"],
                "digest": protocol.model_digest(protocol.model_of(about["model"])),
            }
            write_json(base.with_suffix(".json"), facts)
            # Before the model is loaded: clients that connect now are answered once it is.
            listener.listen(64)
            code = Host(listener, about, base, idle_s).serve()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        for suffix in (".sock", ".json", ".lock"):
            base.with_suffix(suffix).unlink(missing_ok=True)
    # Without the exit handlers of libraries, whose threads may still be generating an answer that no client reads.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def open_engine(model: EngineModel, *, gpus: Sequence[str] = (), say: Callable[[str], None] | None = None) -> Engine:
    """Load a model in this process with the backend named in `EngineModel.engine`.

    Args:
        say: Called with messages for the user, such as a reduced batch size. Default: the log.
    """
    source = locate(model.path, None, revision=model.revision, trust_remote_code=model.trust_remote_code)
    tell = say or logger.warning
    if model.engine == "vllm":
        from tunefleet.workloads.engine.vllm_backend import VllmEngine

        return VllmEngine(model, source, tell, gpus)
    from tunefleet.workloads.engine.transformers_backend import TransformersEngine

    return TransformersEngine(model, source, tell)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
