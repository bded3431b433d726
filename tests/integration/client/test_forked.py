"""A program that is imported once and forked: each fork is a process like any other, and none outlives its fleet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tunefleet.cli.local_cluster import process
from tunefleet.cli.local_cluster.process import SUPPORTED, Child, Forked

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="this system has no fork that can be waited for")

PROGRAM = """
import os, sys, time
print("imported", flush=True)
def main():
    print("begun", os.getpid(), os.getppid(), sys.argv[1:], os.environ["WHAT"], sys.stdin.read() == "", flush=True)
    time.sleep(60)
"""
Begin = Callable[[], Forked]


def until(predicate: Callable[[], object], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not predicate():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "program_of_test.py").write_text(PROGRAM)
    (tmp_path / "broken_of_test.py").write_text("raise SystemExit('error: it lacks a part')")
    return tmp_path / "log"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tmp_path), "WHAT": "given"}


@pytest.fixture
def begin(log: Path, environment: dict[str, str]) -> Iterator[Callable[..., Forked]]:
    made: list[Forked] = []

    def begin_(program: str = "program_of_test") -> Forked:
        with log.open("ab") as out:
            made.append(Forked(program, ["--some", "word"], environment=environment, out=out))
        return made[-1]

    yield begin_
    for each in made:
        each.kill()
        each.close()


def begun(log: Path) -> list[list[str]]:
    # Whole lines: where output is not buffered, a line is written word by word.
    whole = log.read_text().split("\n")[:-1]
    return [line.split(maxsplit=3) for line in whole if line.startswith("begun")]


def test_each_fork_is_a_process_of_its_own_and_the_program_is_imported_once(begin: Begin, log: Path) -> None:
    forked = begin()
    until(lambda: begun(log))
    assert forked.poll() is None
    for number in range(1, 4):
        until(lambda so_far=number: len(begun(log)) == so_far)  # type: ignore[misc]
        assert forked.poll() is None
        assert str(forked.pid) == begun(log)[-1][1]
        os.kill(forked.pid, signal.SIGKILL)
        assert forked.wait(5) == -signal.SIGKILL
        assert forked.refork()
    told = begun(log)
    assert len({pid for _, pid, *_ in told}) == 3
    assert {rest for *_, rest in told} == {"['--some', 'word'] given True"}
    assert log.read_text().count("imported") == 1


def test_nothing_is_forked_while_one_runs_or_after_the_end(begin: Begin, log: Path) -> None:
    forked = begin()
    assert not forked.refork()
    until(lambda: begun(log))
    assert not forked.refork()
    forked.kill()
    assert forked.wait(5) == -signal.SIGKILL
    forked.close()
    assert not forked.refork()
    assert forked.poll() == -signal.SIGKILL
    forked.close()


@pytest.mark.parametrize("how", ["close", "kill"])
def test_a_fork_ends_as_after_sigterm_when_nobody_prepares_the_next(begin: Begin, log: Path, how: str) -> None:
    forked = begin()
    until(lambda: begun(log))
    assert forked.poll() is None
    _, pid, preparing, _ = begun(log)[0]
    if how == "close":
        forked.close()
    else:
        os.kill(int(preparing), signal.SIGKILL)
    assert forked.wait(10) == -signal.SIGKILL
    assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
    assert not forked.refork()


def test_a_program_that_cannot_be_imported_ends_with_its_words(begin: Callable[..., Forked], log: Path) -> None:
    forked = begin("broken_of_test")
    assert forked.wait(20) == 1
    assert log.read_text() == "error: it lacks a part\n"
    assert not forked.refork()


def test_it_can_be_ended_before_it_has_begun(begin: Begin, log: Path) -> None:
    forked = begin()
    forked.send_signal(signal.SIGTERM)
    assert forked.wait(10) == -signal.SIGTERM
    assert not begun(log)


def test_a_wait_ends_in_time(begin: Begin) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        begin().wait(0.1)


def test_no_fork_outlives_whoever_asked_for_it(log: Path, environment: dict[str, str]) -> None:
    code = (
        "import os, sys, time\n"
        "from tunefleet.cli.local_cluster.process import Forked\n"
        "out = open(sys.argv[1], 'ab')\n"
        "forked = Forked('program_of_test', [], environment=dict(os.environ), out=out)\n"
        "while forked.poll() is None and 'begun' not in open(sys.argv[1]).read(): time.sleep(0.01)\n"
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(log)], env=environment, check=True, timeout=30)
    _, pid, preparing, _ = begun(log)[0]
    until(lambda: not {int(pid), int(preparing)} & set(psutil.pids()))


def test_a_child_with_a_program_is_forked_again_when_it_died(log: Path, environment: dict[str, str]) -> None:
    child = Child("server", "none", ["a"], environment=environment, log=log, program="program_of_test")
    child.start()
    try:
        until(lambda: begun(log))
        first = child.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        until(lambda: not child.running)
        assert child.describe_end() == "The server was killed (signal 9)"
        until(lambda: child.restart_if_dead() or len(begun(log)) == 2)
        assert child.pid not in {None, first}
    finally:
        child.stop(signal.SIGTERM, patience_s=10)
    assert not child.running
    assert log.read_text().count("imported") == 1


def test_where_the_system_cannot_fork_the_module_is_run(
    log: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "SUPPORTED", False)
    child = Child("server", "this", [], environment=environment, log=log, program="program_of_test")
    child.start()
    until(lambda: not child.running)
    child.stop(signal.SIGTERM, patience_s=10)
    assert "Zen of Python" in log.read_text()
