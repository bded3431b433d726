"""A fork server ends some time after the last process that used it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.unit.runtime.test_fitness import clients
from tunefleet.runtime.warm import health as module


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_it_ends_when_all_who_used_it_are_gone_but_not_at_once(clock: list[float]) -> None:
    server = clients(clock, orphan_s=30.0)
    user = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    server.connected(user.pid)
    clock[0] += 50
    assert server.stop_reason() is None
    user.communicate()
    clock[0] += 29
    assert server.stop_reason() is None
    clock[0] += 1
    assert server.stop_reason() == "all clients are gone"


@pytest.fixture(autouse=True)
def own_threads_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave threads of earlier tests out of account, which may end at any moment."""
    listdir, tasks = os.listdir, "/proc/self/task"
    before = set(listdir(tasks))
    monkeypatch.setattr(os, "listdir", lambda path: [*set(listdir(path)) - before] if path == tasks else listdir(path))
