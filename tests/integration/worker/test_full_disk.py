"""A worker whose disk is full when it starts: one that was here before waits, a new one says why it cannot work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tunefleet.worker.state import StateFolder

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("as_root"), pytest.mark.timeout(120)]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A results folder on a file system of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def held(folder: Path) -> StateFolder:
    """Let a worker have been here before."""
    before = StateFolder(folder)
    before.open()
    before.worker_id("worker-1")
    before.close()
    return before


def fill(folder: Path) -> Path:
    """Leave not a byte; returns what is to be removed."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as out:
        try:
            while True:
                out.write(b"\0" * 4096)
        except OSError:
            return ballast


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture
def start(
    small: Path, tmp_path: Path, free_port: Callable[[], int]
) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start workers on the folder, whose server does not respond; they are gone afterwards."""
    begun = []
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "LOG_FILE": str(tmp_path / "worker.log"),
        "RESULTS_DIR": str(small),
        "ORCHESTRATOR_BASE_URL": f"http://127.0.0.1:{free_port()}",
        "TUNEFLEET_WORKER_KEY": "tf_" + "0" * 40,
    }

    def one(*words: str, **more: str) -> subprocess.Popen[bytes]:
        command = [str(Path(sys.executable).with_name("tunefleet")), "worker", *words]
        with (tmp_path / "said").open("wb") as log:
            process = subprocess.Popen(command, env=environment | more, stderr=log)
        begun.append(process)
        return process

    yield one
    for process in begun:
        process.kill()
        process.wait()


def test_it_waits_for_room_and_then_works(
    small: Path, tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    before = held(small)
    ballast = fill(small)

    worker = start(WORKER_ID="worker-2")
    said = tmp_path / "said"
    until(lambda: "is full: waiting for free space" in said.read_text(), "it says that it waits")
    assert before.owner_pid is None, "the one that is there names nobody who is gone"
    assert before.heeded_by(worker.pid)
    ballast.unlink()
    until(lambda: before.owner_pid == worker.pid, "it goes on once there is room")
    until(lambda: "does not respond" in said.read_text(), "it looks for its server")
    assert said.read_text().count("is full") == 1
    assert worker.poll() is None


def test_it_can_be_stopped_while_it_waits(
    small: Path, tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    held(small)
    fill(small)
    worker = start()
    until(lambda: "is full: waiting for free space" in (tmp_path / "said").read_text(), "it says that it waits")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(10) == 0


def test_on_a_node_of_a_cluster_it_makes_way_and_is_wanted_again(
    small: Path, tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    held(small)
    fill(small)
    worker = start("--once", "task-000000000000")
    until(lambda: "is full: waiting for free space" in (tmp_path / "said").read_text(), "it says that it waits")
    worker.send_signal(signal.SIGUSR1)
    assert worker.wait(10) == 75


def test_a_new_one_is_told(small: Path, tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]) -> None:
    fill(small)
    worker = start()
    assert worker.wait(60) == 8
    said = (tmp_path / "said").read_text()
    assert f"The results folder {small} cannot be written: No space left on device." in said
    assert "free space" in said
