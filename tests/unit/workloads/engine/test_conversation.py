"""A connection to an engine: whether somebody still listens."""

from __future__ import annotations

import fcntl
import resource
import socket
from collections.abc import Iterator

import pytest

from tunefleet.workloads.engine.rpc import ClientConnection

BEYOND = 1100
"""A descriptor that `select` cannot watch."""


@pytest.fixture
def many_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], BEYOND + 10), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_files")
def test_who_has_left_is_noticed_in_a_process_with_many_open_files() -> None:
    ours, theirs = socket.socketpair()
    with ours, socket.socket(fileno=fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD_CLOEXEC, BEYOND)) as high:
        with theirs:
            conversation = ClientConnection(None, high)  # type: ignore[arg-type]
            assert high.fileno() >= BEYOND
            assert not conversation._gone()
            theirs.send(b"{}")
            assert not conversation._gone(), "it says something"
            high.recv(2)
        assert conversation._gone()
        conversation._lines.close()
