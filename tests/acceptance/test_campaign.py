"""Cycles of the shipped example by the daemon, with the server and worker that it starts: each model is trained,
measured on held-out rows, merged and promoted, and the last one is better than the base.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.acceptance.conftest import ENVIRONMENT, PATIENCE_S
from tests.libraries import required
from tunefleet.client import Client
from tunefleet.errors import TunefleetError
from tunefleet.schemas.campaign import CampaignDetail

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "campaign" / "config.yaml"


@pytest.fixture
def place(tmp_path: Path, free_port: Callable[[], int]) -> Path:
    """A folder with the example, made shorter, and a file of settings, as a user has them."""
    config = yaml.safe_load(EXAMPLE.read_text())
    (campaign,) = config.values()
    campaign["datasets"][0]["max_rows"] = 240
    campaign["samples_per_training"] = 80
    campaign["training"]["max_steps"] = 8
    campaign["publish"] = {"to": str(tmp_path / "published-{cycle}")}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    settings = {**ENVIRONMENT, "TUNEFLEET_HOME": str(tmp_path / "home"), "TUNEFLEET_PORT": str(free_port())}
    (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return tmp_path


def test_the_daemon_trains_again_and_again_and_gets_better(place: Path) -> None:
    required("trl")
    given = {name: value for name, value in os.environ.items() if not name.startswith("TUNEFLEET_")}
    with (place / "said.txt").open("wb") as said:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "tunefleet.campaign"], cwd=place, env={**given, **ENVIRONMENT}, stderr=said
        )
        try:
            _check(place, daemon, 3)
        finally:
            daemon.send_signal(signal.SIGTERM)
            ended = daemon.wait(timeout=120)
    said_text = (place / "said.txt").read_text()
    assert ended == 0, said_text
    lines = [line for line in said_text.splitlines() if "[cycle " in line]
    assert lines
    assert all(" - gsm8k - INFO " in line for line in lines), said_text
    assert "gsm8k: provider local (set by the campaign)." in said_text
    told = [line for line in lines if re.search(r"\[cycle \d+, wait\] training \d of 8 steps$", line)]
    assert told, "where it is no terminal, a line says how far it is"


def _check(place: Path, daemon: subprocess.Popen[bytes], cycles: int) -> None:
    url = "http://127.0.0.1:" + (place / ".env").read_text().split("TUNEFLEET_PORT=")[1].split("\n")[0]
    with _connected(url, place / "home" / "data" / "keys" / "admin.key", daemon) as client:
        found = _after(client, daemon, cycles)
        versions = sorted(client.models.list(name="gsm8k").items, key=lambda each: each.version)
        lineage = client.campaigns.lineage("gsm8k", limit=10).items
    assert [each.version for each in versions][:cycles] == list(range(1, cycles + 1))
    losses = [each.evaluation["candidates"][0]["loss"] for each in versions[:cycles]]
    base = versions[0].evaluation["base"]["loss"]
    assert losses[0] < base - 0.5
    assert versions[0].stage.value in {"promoted", "archived"}
    promoted = next(each for each in versions if each.stage.value == "promoted")
    gain = promoted.evaluation["gate"]["against"]["base"]
    assert gain["low"] > 0, "the promoted model is better on rows that no training has seen, and not by luck"
    chunks = [each.chunk["chunk"]["digest"] for each in lineage if each.chunk is not None and each.cycle < cycles]
    assert len(set(chunks)) == cycles
    tests = {each.lineage["test"]["digest"] for each in versions}
    assert len(tests) == 1, "all are measured on the same rows"
    second = next(each for each in versions if each.version == 2)
    assert second.lineage["base"]["version"] == 1, "the second cycle goes on from what the first has promoted"
    assert found.failures == 0
    for each in versions[:cycles]:
        published = place / f"published-{each.cycle}"
        assert (published / "model.safetensors").is_file() is bool(each.evaluation["gate"]["passed"])


def _connected(url: str, key: Path, daemon: subprocess.Popen[bytes]) -> Client:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and daemon.poll() is None:
        if key.exists():
            client = Client(url, key.read_text().strip(), patience_s=30)
            try:
                if client.campaigns.list().items:
                    return client
            except TunefleetError:
                pass  # it is not up yet
            client.close()
        time.sleep(0.3)
    raise AssertionError("the daemon has made no campaign")


def _after(client: Client, daemon: subprocess.Popen[bytes], cycles: int) -> CampaignDetail:
    deadline = time.monotonic() + PATIENCE_S + 150
    while True:
        found = client.campaigns.get("gsm8k")
        if found.cycles > cycles:
            return found
        assert found.status == "active", found.reason
        assert daemon.poll() is None
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
