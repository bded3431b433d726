"""The fork server: imports the training libraries once, and forks a parent process for each job.

It only imports; it runs no tensor operation, opens no CUDA context and starts no thread, since a child cannot use an
inherited context or thread. This is checked before each fork; a server that fails the check ends, and jobs start cold.
It does not wait for its children, which are independent.

As a program: `python -m tunefleet.runtime.warm.fork_server SOCKET IDLE_S USER_PID`, with the environment for the
imports. A request is one line of JSON: `folder` of the job and `environment` for jobs of the supervisor; or `leaves`,
from a client that needs no more jobs.
"""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import importlib.machinery
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tunefleet import settings
from tunefleet.runtime import locks
from tunefleet.runtime.environment import job_environment, thread_count
from tunefleet.runtime.job_parent import (
    PREEMPTION_NOTICE,
    PROGRAM,
    LaunchRefusedError,
    LockedJob,
    fork_trainer,
    lock_job,
    reply,
    wait,
)
from tunefleet.runtime.warm.health import ORPHAN_S, ClientTracker, Fitness, close_nvml, newest_source
from tunefleet.runtime.warm.lazy_imports import LazyFinder

logger = logging.getLogger(__name__)

PRELOAD = (
    "torch",
    "transformers.trainer",
    "datasets",
    "peft",
    "trl.trainer.sft_trainer",
    PROGRAM,
    "tunefleet.workloads.training",
    # Most of the seconds that bitsandbytes takes when a trainer executes it.
    "torch._inductor.compile_fx",
)
# Packages that open a device or start threads at import; they are executed at their first use.
LAZY = frozenset({"bitsandbytes", "deepspeed", "wandb", "liger_kernel"})

# An environment may have some megabytes, the limit of the kernel.
_MAX_REQUEST_BYTES = 4 << 20
_REQUEST_S = 5.0


def preload() -> None:
    """Import the libraries for jobs; missing ones are skipped, and a job that needs one fails with its own error."""
    sys.meta_path.insert(0, LazyFinder(LAZY))
    gc.disable()
    for name in PRELOAD:
        try:
            importlib.import_module(name)
        except ImportError as error:
            logger.warning("Not preloading %s: %s", name, error)
    _build_tables()
    gc.enable()
    gc.collect()
    # Excludes the imported objects from garbage collection, so that the children keep sharing their memory pages.
    gc.freeze()


def _build_tables() -> None:
    """Build the weight conversion table of Transformers, which would take 0.2 s at the first model of each job."""
    if "transformers" not in sys.modules:
        return
    try:
        importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("")
    except (ImportError, AttributeError, TypeError) as error:  # not public: other versions may differ
        logger.info("Could not build the weight conversion table before the fork: %r", error)


@dataclass(frozen=True)
class JobRequest:
    """A request for a job: its folder, and its supervisor's environment for jobs."""

    folder: Path
    environment: Mapping[str, str]


def serve(
    listener: socket.socket, lock_fd: int, fitness: Fitness, clients: ClientTracker
) -> tuple[LockedJob, Mapping[str, str]] | None:
    """Fork a parent process for each request, until the server is not needed any more or a fork would be unsafe.

    Returns:
        None in the server; in a forked trainer, the job and its environment.
    """
    while (reason := clients.stop_reason()) is None:
        if not select.select([listener], [], [], clients.check_interval_s)[0]:
            continue
        connection = listener.accept()[0]
        asked = _request(connection, clients)
        if asked is None:
            connection.close()
            continue
        fault = fitness.fault()
        if fault is not None:
            reply(connection.detach(), ok=False, code="stale", message=fault)
            logger.warning("Stopping the fork server: %s", fault)
            return None
        if os.fork() == 0:
            listener.close()
            os.close(lock_fd)
            return _run_parent(asked.folder, connection.detach()), asked.environment
        connection.close()
    logger.info("Stopping the fork server: %s", reason)
    return None


def run(held: LockedJob, base_env: Mapping[str, str]) -> int:
    """Run as the trainer: set its environment, threads and seeds, and run the program."""
    # From now on packages are imported as usual.
    for finder in sys.meta_path:
        if isinstance(finder, LazyFinder):
            finder.names = frozenset()
    # As in a fresh interpreter: the program configures its own log, and output is not buffered.
    logging.getLogger().handlers.clear()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(write_through=True)
    environment = job_environment(base_env, held.job)
    settings.replace_environment(environment)
    os.chdir(held.folder)
    sys.argv = [PROGRAM, str(held.folder)]
    # Otherwise all jobs would share the random state of the server.
    random.seed()
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed()
    if torch is not None:
        torch.seed()
        torch.set_num_threads(thread_count(environment))
    return int(importlib.import_module(PROGRAM).main(held.folder) or 0)


def _run_parent(folder: Path, reply_fd: int) -> LockedJob:
    """Run as the parent process of a job; returns only in the trainer."""
    try:
        os.setsid()
        # The server ignores SIGCHLD, with which a process cannot wait for its child.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        held = lock_job(folder)
        pid = fork_trainer(held, reply_fd, warm=True)
        if pid == 0:
            return held
        wait(held, pid)
    except LaunchRefusedError as refusal:
        reply(reply_fd, ok=False, code=refusal.code, message=str(refusal))
        _exit(1)
    except BaseException:  # noqa: BLE001 - top of a process: nothing may unwind into the server's code
        traceback.print_exc()
        _exit(1)
    _exit(0)


def _exit(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    # Without exit handlers of the libraries, which belong to the server.
    os._exit(code)


def _request(connection: socket.socket, clients: ClientTracker) -> JobRequest | None:
    """Return the job that a process of this user requests; None if it requests none."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid != os.geteuid():
        logger.warning("Rejected a request of user %s", uid)
        return None
    clients.connected(pid)
    request = _read(connection)
    if request.get("leaves") is True:
        reply(os.dup(connection.fileno()), ok=True, ends=clients.released(pid))
        return None
    folder, environment, idle_s = (
        Path(str(request.get("folder", ""))),
        request.get("environment"),
        request.get("idle_s"),
    )
    # A client that only checks whether the server is listening sends nothing.
    if not isinstance(environment, dict) or not isinstance(idle_s, int | float):
        return None
    if not folder.is_absolute() or not (folder / "job.json").is_file():
        return None
    clients.connected(pid, requested=True)
    clients.idle_s = max(clients.idle_s, idle_s)
    return JobRequest(folder, {str(name): str(value) for name, value in environment.items()})


def _read(connection: socket.socket) -> dict[str, Any]:
    """Return a request; empty on a timeout, or if it is invalid."""
    line, deadline = bytearray(), time.monotonic() + _REQUEST_S
    try:
        while not line.endswith(b"\n") and len(line) <= _MAX_REQUEST_BYTES:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            piece = connection.recv(64 << 10)
            if not piece:
                return {}
            line += piece
        connection.settimeout(None)
        request = json.loads(line)
    except (OSError, ValueError):
        return {}
    return request if isinstance(request, dict) else {}


def _end(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(0)


def _ends_properly() -> bool:
    return isinstance(sys.exception(), SystemExit | None)


def main(arguments: list[str]) -> int:
    """Serve one socket; returns in the server at its end, and in each forked trainer at the trainer's end.

    Args:
        arguments: Path of the socket, idle time in seconds, and pid of the process that starts it.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    path, idle_s = Path(arguments[0]), float(arguments[1])
    lock_fd = locks.take(path.with_suffix(".lock"))
    if lock_fd is None:
        return 0  # another one serves
    os.set_inheritable(lock_fd, False)
    path.unlink(missing_ok=True)
    server = os.getpid()
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(PREEMPTION_NOTICE, signal.SIG_IGN)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            # Before the imports: early requests wait in the backlog.
            listener.listen(64)
            clients, source = ClientTracker(idle_s, ORPHAN_S), newest_source()
            clients.connected(int(arguments[2]))
            preload()
            close_nvml()
            forked = serve(listener, lock_fd, Fitness.now(source), clients)
    finally:
        if os.getpid() == server:
            # After an error the log is kept for diagnosis.
            for suffix in (".sock", ".lock", ".log") if _ends_properly() else (".sock", ".lock"):
                path.with_suffix(suffix).unlink(missing_ok=True)
    return 0 if forked is None else run(*forked)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
