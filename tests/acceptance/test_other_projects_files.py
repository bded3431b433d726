"""A member of one project asks a shared worker for everything that lies on its disk, and gets none of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

SECRET = "the answer of the first project"
PATIENCE_S = 60.0


@pytest.fixture
def fleet(tmp_path: Path, free_port: Any) -> Iterator[LocalFleet]:
    with LocalFleet(tmp_path / "data", port=free_port(), save_client=False) as made:
        made.await_workers(PATIENCE_S)
        yield made


def document(name: str, source: str) -> str:
    return f"""apiVersion: tunefleet/v1
kind: Task
metadata: {{name: {name}}}
spec: {{taskType: data, sources: [{{path: "{source}"}}], steps: []}}
"""


def end_of(client: Client, task_id: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while (task := client.tasks.get(task_id)).status not in {"completed", "failed"}:
        assert time.monotonic() < deadline, task.why
        time.sleep(0.1)
    return task


def raw(fleet: LocalFleet, key: str, text: str) -> str:
    """Submit a document as a stranger's client does, which looks for no file and uploads none."""
    headers = {"Content-Type": "application/yaml", "Authorization": f"Bearer {key}"}
    reply = httpx.post(f"{fleet.url}/api/v1/workflows", content=text, headers=headers, timeout=60)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["tasks"][0]["id"])


@pytest.mark.story
def test_a_member_of_another_project_reads_nothing_of_the_workers_disk(fleet: LocalFleet, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(f'{{"text": "{SECRET}"}}\n')
    (tmp_path / "task.yaml").write_text(document("first", "rows.jsonl"))
    with Client(fleet.url, fleet.key) as first:
        done = end_of(first, first.submit(tmp_path / "task.yaml").task_id)
        assert (done.status, done.result["result"]["rows"]) == ("completed", 1)
        first.projects.create("second")
        key = first.keys.create("eve", "member", project="second").secret
    results = fleet.results_dir()
    (uploaded,) = (path for path in (results / ".inputs").rglob("rows.jsonl"))
    (made,) = (path for path in (results / done.id).rglob("train.jsonl"))
    with Client(fleet.url, key) as second:
        for place in (uploaded, made, f"{done.id}/{made.relative_to(results / done.id)}", tmp_path / "rows.jsonl"):
            task = end_of(second, raw(fleet, key, document("theft", str(place))))
            assert (task.status, task.reason) == ("failed", "bad_input")
            assert "on a worker a workflow may only use uploaded files" in task.error
            assert SECRET not in str(task)
            assert str(tmp_path) not in str(task.error)
        nothing = end_of(second, raw(fleet, key, document("theft", str(tmp_path / "nothing.jsonl"))))
        assert nothing.error == task.error, "whether something is there is not told"
    with Client(fleet.url, fleet.key) as first:
        again = end_of(first, raw(fleet, fleet.key, document("again", str(made))))
        assert again.status == "completed", "what a task of the same project has left may be named"
