"""An agent on its machine: its log goes to a collector, and its GPUs are read at an interval."""

from __future__ import annotations

import json
import logging
import socket
import threading
from pathlib import Path

import pytest

from tunefleet.agent import log_setup
from tunefleet.agent.gpus import Gpus
from tunefleet.errors import MachineError
from tunefleet.runtime.gpu.info import GpuFigures
from tunefleet.settings import load_agent


def test_the_log_goes_to_a_collector_by_url() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as collector:
        collector.bind(("127.0.0.1", 0))
        collector.settimeout(5)
        handler = log_setup.remote(f"syslog://127.0.0.1:{collector.getsockname()[1]}")
        handler.emit(logging.LogRecord("x", logging.WARNING, "f.py", 1, "disk is %s", ("full",), None))
        data = collector.recv(4096)
        handler.close()
    assert data.startswith(b"<12>tunefleet-agent: {")
    assert json.loads(data.partition(b": ")[2])["message"] == "disk is full"
    with pytest.raises(MachineError, match="TUNEFLEET_LOG_SINK"):
        log_setup.remote("otlp+http://host")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_gpus_are_looked_at_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_MONITORING_INTERVAL_SECONDS", "0.02")
    looks = threading.Semaphore(0)

    def read() -> tuple[GpuFigures, ...]:
        looks.release()
        return (GpuFigures(0, "GPU-a", "A100", 0, 1 << 30),)

    gpus = Gpus(load_agent(), read=read)
    gpus.start()
    assert all(looks.acquire(timeout=5) for _ in range(4))
    gpus.stop()
