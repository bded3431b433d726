"""The fork server: has imported the training libraries and forks a keeper for each job.

It only imports; it runs no tensor operation, opens no CUDA context and starts no thread, because a child would inherit
what it cannot use. Before each fork that is checked; a server that is no longer fit ends, and jobs start cold. It
waits for nobody: keepers are of their own.

As a program: `python -m tunefleet.jobs.forkserver SOCKET IDLE_S USER_PID`, the jobs' environment as JSON on standard
input.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import logging
import os
import random
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import tunefleet
from tunefleet import settings
from tunefleet.attach import identity
from tunefleet.jobs import locks
from tunefleet.jobs.environment import job_environment, thread_count
from tunefleet.jobs.keeper import PROGRAM, Held, RefusedError, fork_trainer, hold, reply, wait
from tunefleet.jobs.lazy import LazyFinder

logger = logging.getLogger(__name__)

PRELOAD = (
    "torch",
    "transformers.trainer",
    "datasets",
    "peft",
    "trl.trainer.sft_trainer",
    PROGRAM,
    "tunefleet.programs.train",
    # Nearly all that bitsandbytes takes seconds for when a trainer executes it.
    "torch._inductor.compile_fx",
)
LAZY = frozenset({"bitsandbytes", "deepspeed", "wandb", "liger_kernel"})
"""Packages that touch a device or start threads when they are imported; they stay unexecuted until first used."""

ORPHAN_S = 30.0
"""How long the server outlives the last process that has used it: a worker that was killed comes back sooner."""

_MAX_REQUEST_BYTES = 4096
_REQUEST_S = 5.0
_LOOK_S = 5.0


@dataclass(frozen=True)
class Fitness:
    """What the process was like when its imports were done; a fork needs it to be so still."""

    threads: int
    packages: tuple[int, ...]
    source: int

    @classmethod
    def now(cls, source: int | None = None) -> Fitness:
        """Describe the process as it is.

        Args:
            source: The state of our own code before its import began, if that is long ago.
        """
        threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - names only, once a fork
        return cls(threads, _packages(), newest_source() if source is None else source)

    def fault(self) -> str | None:
        """Return why a fork would be unsafe or stale, or None."""
        now = Fitness.now()
        torch = sys.modules.get("torch")
        if now.threads != self.threads:
            return f"it has {now.threads} threads instead of {self.threads}"
        if torch is not None and torch.cuda.is_initialized():
            return "CUDA has been initialised in it"
        if _open_devices():
            return f"it has opened {_open_devices()[0]}"
        if now.packages != self.packages:
            return "an installed package has changed"
        if now.source != self.source:
            return "Tunefleet itself has changed"
        return None


@dataclass
class Need:
    """Whether anybody still needs the server.

    Args:
        idle_s: How long it waits for a job.
        orphan_s: How long it waits when all who have ever connected are gone.
    """

    idle_s: float
    orphan_s: float
    _users: dict[int, float | None] = field(default_factory=dict)
    _asked_at: float = field(default_factory=time.monotonic)
    _seen_at: float = field(default_factory=time.monotonic)

    def met(self, pid: int, *, asked: bool = False) -> None:
        """Note that a process has connected, and whether it asked for a job."""
        now = time.monotonic()
        self._users[pid], self._seen_at = identity.process_started_at(pid), now
        if asked:
            self._asked_at = now

    def over(self) -> str | None:
        """Return why the server may end, or None while it may be needed."""
        now = time.monotonic()
        if now - self._asked_at >= self.idle_s:
            return f"nobody has asked for a job in {self.idle_s:.0f} s"
        self._users = {pid: at for pid, at in self._users.items() if at and identity.process_started_at(pid) == at}
        if self._users:
            self._seen_at = now
        return "all who have used it are gone" if now - self._seen_at >= self.orphan_s else None

    @property
    def look_s(self) -> float:
        """How long to sleep between two looks."""
        return min(_LOOK_S, self.idle_s, self.orphan_s)


def preload() -> None:
    """Import what jobs need; what is not installed is left out, a job that needs it will say so."""
    sys.meta_path.insert(0, LazyFinder(LAZY))
    for name in PRELOAD:
        try:
            importlib.import_module(name)
        except ImportError as error:
            logger.warning("%s is not preloaded: %s", name, error)
    gc.collect()
    # Objects of the imports are never looked at again, so that the children share their pages.
    gc.freeze()


def serve(listener: socket.socket, lock_fd: int, fitness: Fitness, need: Need) -> Held | None:
    """Fork a keeper for each request, until nobody needs it any more or a fork would be unsafe.

    Returns:
        None in the server; in a trainer that it led to, the job to run.
    """
    while (over := need.over()) is None:
        if not select.select([listener], [], [], need.look_s)[0]:
            continue
        connection = listener.accept()[0]
        folder = _request(connection, need)
        if folder is None:
            connection.close()
            continue
        fault = fitness.fault()
        if fault is not None:
            reply(connection.detach(), ok=False, code="stale", message=fault)
            logger.warning("The fork server ends: %s", fault)
            return None
        if os.fork() == 0:
            listener.close()
            os.close(lock_fd)
            return _keep(folder, connection.detach())
        connection.close()
    logger.info("The fork server ends: %s", over)
    return None


def run(held: Held, base_env: Mapping[str, str]) -> int:
    """Be the trainer: take its environment, threads and seeds, and run the program.

    Returns:
        The exit code of the process.
    """
    for finder in sys.meta_path:
        if isinstance(finder, LazyFinder):
            finder.names = frozenset()
    # As in a fresh interpreter: the program sets up its log, and what it prints is seen at once.
    logging.getLogger().handlers.clear()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(write_through=True)
    environment = job_environment(base_env, held.job)
    settings.replace_environment(environment)
    os.chdir(held.folder)
    sys.argv = [PROGRAM, str(held.folder)]
    random.seed()
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed()
    if torch is not None:
        torch.seed()
        torch.set_num_threads(thread_count(environment))
    return int(importlib.import_module(PROGRAM).main(held.folder) or 0)


def _keep(folder: Path, reply_fd: int) -> Held:
    """Be the keeper; returns only in the trainer."""
    try:
        os.setsid()
        # With the server's setting the keeper could not wait for its child.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        held = hold(folder)
        pid = fork_trainer(held, reply_fd, warm=True)
        if pid == 0:
            return held
        wait(held, pid)
    except RefusedError as refusal:
        reply(reply_fd, ok=False, code=refusal.code, message=str(refusal))
        _leave(1)
    except BaseException:  # noqa: BLE001 - the edge of a process: nothing may unwind into the server's code
        traceback.print_exc()
        _leave(1)
    _leave(0)


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    # Without the libraries' exit handlers: they belong to the server.
    os._exit(code)


def _request(connection: socket.socket, need: Need) -> Path | None:
    """Return the job folder that a process of this user asks for."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid != os.geteuid():
        logger.warning("A request of user %s is refused", uid)
        return None
    need.met(pid)
    connection.settimeout(_REQUEST_S)
    try:
        line = connection.recv(_MAX_REQUEST_BYTES)
    except OSError:
        return None
    connection.settimeout(None)
    folder = Path(os.fsdecode(line.rstrip(b"\n")))
    # Whoever only looks whether the server listens sends nothing.
    if not line.endswith(b"\n") or not folder.is_absolute() or not (folder / "job.json").is_file():
        return None
    need.met(pid, asked=True)
    return folder


def _open_devices() -> list[str]:
    links = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names only, once a fork
        with contextlib.suppress(OSError):
            links.append(str(Path(f"/proc/self/fd/{name}").readlink()))
    return [link for link in links if link.startswith("/dev/nvidia")]


def newest_source() -> int:
    """Return what changes when our own code is edited."""
    return max((file.stat().st_mtime_ns for file in Path(tunefleet.__path__[0]).rglob("*.py")), default=0)


def _packages() -> tuple[int, ...]:
    """Return what changes when a package is installed, upgraded or removed."""
    return tuple(Path(entry).stat().st_mtime_ns for entry in sys.path if entry and Path(entry).is_dir())


def _end(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(0)


def _ends_properly() -> bool:
    return isinstance(sys.exception(), SystemExit | None)


def main(arguments: list[str]) -> int:
    """Serve one socket; returns in the server at its end, and in each trainer at the trainer's.

    Args:
        arguments: The socket's path, the idle time in seconds, and the process that it is started for.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    path, idle_s = Path(arguments[0]), float(arguments[1])
    base_env: dict[str, str] = json.load(sys.stdin.buffer)
    lock_fd = locks.take(path.with_suffix(".lock"))
    if lock_fd is None:
        return 0  # another one serves
    os.set_inheritable(lock_fd, False)
    path.unlink(missing_ok=True)
    server = os.getpid()
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            # Before the imports: whoever asks now is served when they are done.
            listener.listen(64)
            need, source = Need(idle_s, ORPHAN_S), newest_source()
            need.met(int(arguments[2]))
            preload()
            held = serve(listener, lock_fd, Fitness.now(source), need)
    finally:
        if os.getpid() == server:
            # The log stays if the end was not a proper one: it says why.
            for suffix in (".sock", ".lock", ".log") if _ends_properly() else (".sock", ".lock"):
                path.with_suffix(suffix).unlink(missing_ok=True)
    return 0 if held is None else run(held, base_env)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
