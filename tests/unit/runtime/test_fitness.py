"""When a fork server ends by itself, and when a fork would be unsafe."""

from __future__ import annotations

import os
import sys
import threading
import types
from pathlib import Path

import pytest

from tunefleet.runtime.warm import health as module
from tunefleet.runtime.warm.health import ClientTracker, Fitness


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def clients(clock: list[float], **options: float) -> ClientTracker:
    # The defaults are taken from the clock when the object is made.
    return ClientTracker(
        **{"idle_s": 100.0, "orphan_s": 1000.0, "_requested_at": clock[0], "_seen_at": clock[0], **options}
    )  # type: ignore[arg-type]


def test_it_ends_when_nobody_has_asked_for_long(clock: list[float]) -> None:
    server = clients(clock)
    server.connected(os.getpid())
    clock[0] += 99
    assert server.stop_reason() is None
    server.connected(os.getpid(), requested=True)
    clock[0] += 99
    assert server.stop_reason() is None
    clock[0] += 1
    assert server.stop_reason() == "no job was requested for 100 s"


def test_it_ends_at_once_when_the_last_one_leaves_and_says_so(clock: list[float]) -> None:
    server, other = clients(clock), os.getppid()
    server.connected(os.getpid())
    server.connected(other)
    assert server.released(os.getpid()) is False
    assert server.stop_reason() is None
    assert server.released(other) is True
    assert server.stop_reason() == "all clients have disconnected"
    server.connected(os.getpid())
    assert server.stop_reason() is None


def test_whoever_comes_back_in_time_keeps_it(clock: list[float]) -> None:
    server = clients(clock, orphan_s=30.0)
    clock[0] += 29
    server.connected(os.getpid())
    clock[0] += 50
    assert server.stop_reason() is None


@pytest.fixture(autouse=True)
def own_threads_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave threads of earlier tests out of account, which may end at any moment."""
    listdir, tasks = os.listdir, "/proc/self/task"
    before = set(listdir(tasks))
    monkeypatch.setattr(os, "listdir", lambda path: [*set(listdir(path)) - before] if path == tasks else listdir(path))


def test_a_process_as_it_was_is_fit() -> None:
    assert Fitness.now().fault() is None


def test_one_more_thread_makes_a_fork_unsafe() -> None:
    fitness, end = Fitness.now(), threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert "threads instead of" in str(fitness.fault())
    finally:
        end.set()
        thread.join()


def test_an_initialised_device_makes_a_fork_unsafe(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert Fitness.now().fault() == "CUDA has been initialized in it"


def test_an_open_device_makes_a_fork_unsafe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module._open_devices() == []
    monkeypatch.setattr(module, "_open_devices", lambda: ["/dev/nvidia0"])
    assert Fitness.now().fault() == "it has opened /dev/nvidia0"


def test_an_installed_package_or_a_change_of_ours_makes_it_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "module.py").write_text("")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(module.tunefleet, "__path__", [str(ours)])
    os.utime(ours / "module.py", (1, 1))
    fitness = Fitness.now()
    assert fitness.fault() is None
    os.utime(ours / "module.py")
    assert fitness.fault() == "Tunefleet itself has changed"
    assert Fitness.now(source=1_000_000_000).fault() == "Tunefleet itself has changed"
    fitness = Fitness.now()
    os.utime(site, (1, 1))
    assert fitness.fault() == "an installed package has changed"


def test_what_asked_nvml_for_gpus_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, asked = [2], []

    class Library:
        def nvmlShutdown(self) -> int:
            opened[0] -= 1
            return 0 if opened[0] >= 0 else 1

    def load(name: str, mode: int) -> Library:
        asked.append((name, mode))
        return Library()

    monkeypatch.setattr(module.ctypes, "CDLL", load)
    module.close_nvml()
    assert opened == [-1], "until it says that it is closed"
    assert asked == [("libnvidia-ml.so.1", os.RTLD_NOLOAD)], "what nobody has loaded is not loaded for this"


def test_what_stands_in_for_nvml_is_not_closed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    always = types.SimpleNamespace(nvmlShutdown=lambda: closed.append(0) or 0)
    monkeypatch.setattr(module.ctypes, "CDLL", lambda *_, **__: always)
    module.close_nvml()
    assert len(closed) == 100


@pytest.mark.parametrize("missing", [OSError("no such library"), types.SimpleNamespace()], ids=["library", "function"])
def test_where_there_is_no_nvml_there_is_nothing_to_close(missing: object, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def load(name: str, mode: int) -> object:
        asked.append(name)
        if isinstance(missing, Exception):
            raise missing
        return missing

    monkeypatch.setattr(module.ctypes, "CDLL", load)
    module.close_nvml()
    assert asked == ["libnvidia-ml.so.1"]
