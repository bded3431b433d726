"""The processes of the proof: a server that can be killed and restarted, and workers."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, Self

from tunefleet.client import Client
from tunefleet.errors import TunefleetError

READY_S = 60.0
ARMS = "arms"
"""The module that trains; it takes seconds to import, so it is imported once and forked from."""
# One thread of torch a process: several of them share the cores.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class Server:
    """A real server on a free port, with a data folder that outlives it; a context manager.

    Args:
        data: Its folder.
    """

    def __init__(self, data: Path) -> None:
        self.data = data
        self.log = data.with_suffix(".log")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it responds."""
        command = [sys.executable, "-m", "tunefleet.api", "--data", str(self.data), "--port", str(self.port)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + READY_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"The server did not start; its log is {self.log}.")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it without warning."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def client(self) -> Client:
        """Return a client to create and inspect federations."""
        return Client(self.url, (self.data / "keys" / "admin.key").read_text().strip())

    def _answers(self) -> bool:
        try:
            with Client(self.url, (self.data / "keys" / "admin.key").read_text().strip(), patience_s=0.0) as client:
                return client.info().authenticated
        except (TunefleetError, OSError):
            return False

    def kill_in_aggregation(self, limit_s: float) -> str | None:
        """Kill it as soon as it averages a round, and return what its store then has of that round.

        Args:
            limit_s: How long to wait for an average.

        Returns:
            The status that the round was left in; None if there was no average.
        """
        work = self.data / "federation"
        # What an earlier kill has left goes away soon after the next start.
        left = set(work.glob("*/made"))
        deadline = time.monotonic() + limit_s
        while not set(work.glob("*/made")) - left:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.0005)
        self.kill()
        with sqlite3.connect(self.data / "tunefleet.db") as store:
            found = store.execute("SELECT status FROM federation_rounds ORDER BY opened_at DESC LIMIT 1").fetchone()
        return str(found[0])


class Crew:
    """Training processes, forked from one that has imported the training libraries.

    Args:
        logs: Folder for what they print.
        at_once: How many trainings of one worker alone run at the same time.
    """

    def __init__(self, logs: Path, at_once: int = 2) -> None:
        here = str(Path(__file__).resolve().parent)
        path = os.pathsep.join([here, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).strip(os.pathsep)
        os.environ.update(ENVIRONMENT, PYTHONPATH=path)
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = logs
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([ARMS])
        _start_fork_server(logs / "imports.log")
        to_log = {"initializer": _write_to, "initargs": (logs / "pool.log", 1, 2)}
        self._pool = ProcessPoolExecutor(at_once, mp_context=self._context, **to_log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def start(self, name: str, do: str, *args: Any) -> Any:
        """Start a separate process, which can be killed.

        Args:
            name: What its log is called.
            do: Which function of `arms`.
            args: For it.
        """
        process = self._context.Process(target=_logged, args=(self._logs / f"{name}.log", do, *args), daemon=True)
        process.start()
        return process

    def submit(self, do: str, *args: Any) -> Future[Any]:
        """Run a function of `arms` as soon as a process is free."""
        return self._pool.submit(_call, do, *args)


def _start_fork_server(log: Path) -> None:
    """Start the process that all others are forked from; its output at import and exit goes to its log."""
    shown = os.dup(2)
    try:
        _write_to(log, 2)
        forkserver.ensure_running()
    finally:
        os.dup2(shown, 2)
        os.close(shown)


def _write_to(log: Path, *descriptors: int) -> None:
    with log.open("ab") as file:
        for descriptor in descriptors:
            os.dup2(file.fileno(), descriptor)


def _logged(log: Path, do: str, *args: Any) -> None:
    _write_to(log, 1, 2)
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("tunefleet.federation").setLevel(logging.INFO)
    _call(do, *args)


def _call(do: str, *args: Any) -> Any:
    # By name: the process that asks for it never imports the training libraries.
    return getattr(importlib.import_module(ARMS), do)(*args)
