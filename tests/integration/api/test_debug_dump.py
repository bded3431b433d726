"""`tunefleet debug-dump` beside a running server: its state is in the archive, the secrets of a document are not."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import httpx
import pytest

from tests.integration.api.support import Running, submit
from tunefleet.cli.main import run
from tunefleet.cli.server import checks

API = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: asks}
spec:
  taskType: api
  api:
    url: "https://example.org/v1"
    headers: {Authorization: "Bearer planted-in-a-spec"}
    json: {ask: hello, password: planted-in-a-body}
"""


def test_the_servers_state_is_in_the_archive_without_the_secrets_of_documents(
    running: Running, admin: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checks, "CHECKS", (checks.python, checks.server))
    monkeypatch.setenv("TUNEFLEET_HOME", str(tmp_path))
    monkeypatch.setenv("TUNEFLEET_URL", running.url)
    monkeypatch.setenv("TUNEFLEET_KEY", running.admin_key)
    tasks = [submit(admin), *(submit(admin) for _ in range(3))]
    reply = admin.post("/workflows", json={"document": API})
    assert reply.status_code == 201, reply.text
    assert run(["debug-dump", "dump.tar.gz"]) == 0
    found: dict[str, str] = {}
    with tarfile.open(tmp_path / "dump.tar.gz") as archive:
        for member in archive.getmembers():
            stream = archive.extractfile(member)
            assert stream is not None
            found[member.name.partition("/")[2]] = stream.read().decode()
    assert tasks[0] in found["server/tasks-queued.json"]
    assert "tunefleet_tasks{" in found["server/metrics.txt"]
    assert "counters" in json.loads(found["server/metrics.json"])
    assert tasks[-1] in found["server/events.json"]
    assert json.loads(found["server/server.json"])["schema_revision"]
    text = "\n".join(found.values())
    assert "planted" not in text
    assert running.admin_key not in text
