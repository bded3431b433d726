"""A secret through a whole fleet of real processes: the worker uses it, and nobody writes it down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tunefleet.cli.fleet import LocalFleet
from tunefleet.client import Client

VALUE = "a-value-that-nobody-else-has"
ECHO = """apiVersion: tunefleet/v1
metadata: {name: hello}
spec: {taskType: echo, data: {type: list, items: ["key ${secret:TOKEN}", "$${secret:TOKEN}"]}}
"""


def test_a_secret_is_used_and_never_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: Callable[[], int]
) -> None:
    monkeypatch.setenv("TUNEFLEET_SECRET_TOKEN", VALUE)
    quiet = {"TUNEFLEET_WARM_START": "false"}
    data = tmp_path / "data"
    fleet = LocalFleet(data, port=free_port(), environment=quiet, save_client=False)
    with fleet, Client(fleet.url, fleet.key) as client:
        run = client.submit(ECHO)
        done = run.wait(timeout_s=60)
        worker = client.workers.list().items[0]
        assert "TOKEN" in worker.capabilities.secrets
        assert done.status == "completed"
        texts = [each["output"] for each in (done.result or {})["result"]["items"]]
        # The executor echoes what it was given; on its way back the value gave way to the name.
        assert texts == ["key ${secret:TOKEN}", "${secret:TOKEN}"]
    files = [path for path in data.rglob("*") if path.is_file()]
    assert any(path.name.startswith("tunefleet.db") for path in files)
    for path in files:
        assert VALUE.encode() not in path.read_bytes(), path
