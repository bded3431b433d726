"""What a unit test may not do is noticed by its guard, and what it may do is not."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit import conftest as guard


@pytest.fixture
def watch() -> Iterator[guard.Watch]:
    """Watch this test as if it were a unit test."""
    watch = guard.Watch()
    guard.watches[:] = [watch]
    yield watch
    guard.watches.clear()


def popen() -> None:
    subprocess.run(["true"], check=True)


def in_thread() -> None:
    thread = threading.Thread(target=popen)
    thread.start()
    thread.join()


def fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def spawn() -> None:
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()


def bind() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))


def connect() -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect_ex("/nowhere.sock")


@pytest.mark.parametrize("act", [popen, in_thread, fork, spawn, bind, connect])
def test_a_process_and_a_socket_are_noticed(watch: guard.Watch, act: Callable[[], None]) -> None:
    act()
    assert "no process" in watch.found[0] or "no socket" in watch.found[0]


def test_what_leads_to_no_other_process_is_allowed(watch: guard.Watch, tmp_path: Path) -> None:
    asyncio.run(asyncio.sleep(0))
    for each in socket.socketpair():
        each.close()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as connection:
        listener.bind(str(tmp_path / "own"))
        listener.listen()
        connection.connect(str(tmp_path / "own"))
    with socket.socket(type=socket.SOCK_DGRAM) as route:
        route.connect(("127.0.0.1", 9))
    assert watch.found == []
