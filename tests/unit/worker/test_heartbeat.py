"""Load figures apart from the lease, and the worker's log file."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from tunefleet.errors import MachineError
from tunefleet.schemas.worker_link import ExchangeReply, Load
from tunefleet.settings import WorkerSettings
from tunefleet.worker import main
from tunefleet.worker.machine import probe
from tunefleet.worker.machine.probe import Heartbeat
from tunefleet.worker.outbox import Outbox


def test_load_is_said_once_and_newer_figures_take_the_place_of_older(tmp_path: Path) -> None:
    outbox = Outbox("w", "s")
    older, newer = (Load(memory_free_bytes=size, disk_free_bytes=0) for size in (1, 2))
    for figures in (older, newer):
        before = outbox.version
        outbox.load(figures)
        assert outbox.version > before, "it is worth an exchange of its own"
    draft = outbox.draft(holding=(), want={}, wait_s=0.0)
    assert draft.request.load == newer
    again = outbox.draft(holding=(), want={}, wait_s=0.0)
    assert again.request.load == newer, "until it was answered"
    outbox.answered(draft, ExchangeReply())
    assert outbox.draft(holding=(), want={}, wait_s=0.0).request.load is None


def test_a_heartbeat_comes_at_once_and_again_also_after_a_failure() -> None:
    outbox, third = Outbox("w", "s"), threading.Event()
    calls: list[int] = []

    def read() -> Load:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("gone")
        if len(calls) == 3:
            third.set()
        return Load(memory_free_bytes=len(calls), disk_free_bytes=0)

    heartbeat = Heartbeat(outbox, read, 0.01)
    heartbeat.start()
    assert third.wait(30)
    heartbeat.close()
    assert outbox.draft(holding=(), want={}, wait_s=0.0).request.load is not None


def test_load_has_what_placement_and_people_look_at(tmp_path: Path) -> None:
    found = probe.load(WorkerSettings(), results_dir=tmp_path)
    assert found.memory_free_bytes > 0
    assert found.disk_free_bytes > 0
    assert found.load_1m is not None
    assert found.uptime_s is not None
    assert found.uptime_s >= 0


def test_a_worker_tells_its_process_and_the_way_to_its_server(tmp_path: Path) -> None:
    found = probe.capabilities(WorkerSettings(cost_per_hour=2.5), (), results_dir=tmp_path)
    assert (found.cost_per_hour, found.link, found.address) == (2.5, "http", "127.0.0.1")
    assert found.pid is not None
    assert found.cpu_model


def test_the_log_rotates_in_the_workers_folder(tmp_path: Path) -> None:
    settings = WorkerSettings(log_max_bytes=2000, log_backup_count=2)
    logger = logging.getLogger("tunefleet.test")
    with main.kept(settings, tmp_path):
        for number in range(100):
            logger.warning("Line %d of many, as long as a line is.", number)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["worker.log", "worker.log.1", "worker.log.2"]
    assert all(path.stat().st_size <= 2000 for path in tmp_path.iterdir())
    assert "Line 99" in (tmp_path / "worker.log").read_text()
    logger.warning("This is after the end.")
    assert "after the end" not in (tmp_path / "worker.log").read_text()


def test_a_log_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    wrong = WorkerSettings(log_file=tmp_path / "nowhere" / "w.log")
    with pytest.raises(MachineError, match="LOG_FILE"), main.kept(wrong, tmp_path):
        raise AssertionError("it cannot be written")
