"""A unit test starts no process and opens no socket: one that does fails, whatever the code under test makes of it."""

from __future__ import annotations

import multiprocessing.util
import socket
import sys
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import pytest

PROCESSES = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "pty.spawn"}
SOCKETS = {"socket.bind", "socket.connect"}
# What a library does at its first import, in whichever test that is: the standard library asks for the processor
# (`platform.uname`), urllib3 whether this machine has IPv6, and matplotlib for the fonts.
OF_IMPORTS = [["uname", "-p"], ("::1", 0), ["fc-list", "--help"], ["fc-list", "--format=%{file}\\n"]]


@dataclass
class Watch:
    """Notes what a test starts and opens, in the threads that began after the test."""

    others: set[int] = field(default_factory=lambda: {each.ident or 0 for each in threading.enumerate()})
    """Threads of the run itself and of earlier tests, except the one that runs this test."""
    bound: set[Any] = field(default_factory=set)
    """The test's own Unix sockets, which lead to no other process."""
    found: list[str] = field(default_factory=list)
    ended: bool = False
    """Whether what happens now is none of the test's."""

    def __post_init__(self) -> None:
        self.others.discard(threading.get_ident())

    def event(self, name: str, arguments: tuple[Any, ...]) -> None:
        if self.ended or threading.get_ident() in self.others or (len(arguments) > 1 and arguments[1] in OF_IMPORTS):
            return
        if name in PROCESSES:
            self.found.append(f"starts no process, but here is {name}{arguments[:2]!r:.300}")
        elif name in SOCKETS and not self._allows(name, *arguments):
            self.found.append(f"opens no socket, but here is {name} of {arguments[1]!r}")

    def _allows(self, name: str, opened: socket.socket, address: Any) -> bool:
        if opened.family == socket.AF_UNIX:
            if name == "socket.bind":
                self.bound.add(address)
            return address in self.bound
        # To connect a datagram socket sends nothing: it asks the kernel for the route, and for this machine's address.
        return name == "socket.connect" and opened.type == socket.SOCK_DGRAM


watches: list[Watch] = []
"""At most one: that of the test that runs."""


def _heard(name: str, arguments: tuple[Any, ...]) -> None:
    if watches and (name in PROCESSES or name in SOCKETS):
        watches[0].event(name, arguments)


def _spawned(path: bytes, *given: Any) -> Any:
    """What `multiprocessing` starts, except by a fork, raises no event of its own."""
    sys.audit("os.posix_spawn", path, *given)
    return _spawn(path, *given)


sys.addaudithook(_heard)
_spawn, multiprocessing.util.spawnv_passfds = multiprocessing.util.spawnv_passfds, _spawned


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Watch a test with its fixtures; the databases of `--store postgres` are those of another process."""
    watches[:] = [] if item.config.getoption("--store") == "postgres" else [Watch()]
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Fail a test that has started or opened something."""
    if nextitem is None:
        # The services of the whole run end with its last test, which may be one of these.
        for watch in watches:
            watch.ended = True
    try:
        yield
    finally:
        found = [each for watch in watches for each in watch.found]
        watches.clear()
    if found:
        pytest.fail(f"tests/unit {found[0]}. Move this test to tests/integration/<area>.", pytrace=False)
