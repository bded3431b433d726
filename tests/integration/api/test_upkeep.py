"""What a server says of itself and of the room that its data takes, and what tasks hand to each other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.api.support import HandWorker, Running, is_problem
from tunefleet.client import Client
from tunefleet.db.engine import migrate
from tunefleet.db.repositories import artifacts
from tunefleet.orchestrator.ha import storage_marker
from tunefleet.orchestrator.storage import usage_report

PASSED = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: passed}
spec:
  stages:
    - {name: first, spec: {taskType: echo, data: {type: list, items: [a]}}}
    - name: second
      spec:
        taskType: echo
        data: {type: list, items: ["got ${first.result.items.0.output}"]}
    - {name: third, dependsOn: [first], spec: {taskType: echo, data: {type: list, items: [b]}}}
"""


def sizes(client: httpx.Client) -> dict[str, tuple[int, int]]:
    view = client.get("/storage").json()
    assert view["total_bytes"] == sum(use["size_bytes"] for use in view["uses"])
    return {use["kind"]: (use["files"], use["size_bytes"]) for use in view["uses"]}


def lying(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_the_room_that_data_takes_is_what_lies_in_the_folder(
    running: Running, admin: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_report, "FRESH_S", 0.0)
    before = sizes(admin)
    (tmp_path / "rows.jsonl").write_bytes(b"x" * 4321)
    with Client(running.url, running.admin_key) as client:
        client.data.push(tmp_path / "rows.jsonl", name="rows", kind="dataset")
        after = sizes(admin)
        assert client.storage().total_bytes == sum(size for _, size in after.values())
        client.data.push(tmp_path / "rows.jsonl", name="the same rows", kind="dataset")
    assert after["data"] == (before["data"][0] + 1, before["data"][1] + 4321)
    again = sizes(admin)
    assert again["data"] == after["data"], "a file counts once, whoever refers to it"
    data = running.core.settings.data_dir
    kept = ("results", "checkpoints", "federations", "data", "arriving", "unused")
    mark = running.core.db.read(storage_marker.digest_of).result()
    assert mark is not None
    known = sum(again[kind][1] for kind in kept) + running.core.blobs.size(mark)
    assert known == lying(data / "artifacts")
    database = [data / name for name in ("tunefleet.db", "tunefleet.db-wal", "tunefleet.db-shm")]
    assert again["database"] == (3, sum(path.stat().st_size for path in database))


def test_what_nothing_refers_to_is_told_apart(
    running: Running, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_report, "FRESH_S", 0.0)
    digest = hashlib.sha256(b"nobody's").hexdigest()
    before = sizes(admin)
    sent = admin.put(f"/blobs/{digest}", content=b"nobody's", headers={"Upload-Offset": "0", "Upload-Length": "8"})
    assert sent.status_code < 300, sent.text
    after = sizes(admin)
    assert {kind for kind in after if after[kind] != before[kind]} - {"database"} == {"arriving"}
    holder = admin.get("/info").json()["key_id"]
    running.core.db.write(lambda connection: artifacts.unpin(connection, [holder])).result()
    freed = sizes(admin)
    assert freed["arriving"] == before["arriving"]
    assert freed["unused"] == (before["unused"][0] + 1, before["unused"][1] + 8)


def test_a_count_is_shared_for_a_while(running: Running, admin: httpx.Client) -> None:
    first, second = admin.get("/storage").json(), admin.get("/storage").json()
    assert first["counted_at"] == second["counted_at"]


def test_who_may_see_what_the_server_is(
    running: Running, admin: httpx.Client, worker: httpx.Client, as_role: Callable[[str], httpx.Client]
) -> None:
    told: dict[str, Any] = admin.get("/server").json()
    assert (told["schema_revision"], told["artifacts"]) == (migrate.HEAD, "folder")
    assert told["database"].startswith("SQLite 3.")
    assert told["data_dir"] == str(running.core.settings.data_dir.absolute())
    viewer = as_role("viewer")
    assert viewer.get("/server").json()["data_dir"] is None
    assert viewer.get("/storage").status_code == 200
    for path in ("/server", "/storage"):
        is_problem(worker.get(path), 403, "forbidden")
    key = admin.get("/info").json()["key_id"]
    assert key in {each["id"] for each in admin.get("/keys").json()["items"]}


def test_what_tasks_hand_to_each_other_is_said_edge_by_edge(
    running: Running, admin: httpx.Client, hand: HandWorker
) -> None:
    made = admin.post("/workflows", json={"document": PASSED}).json()
    ids = {task["name"]: task["id"] for task in made["tasks"]}
    edges = {edge["target"]: edge for edge in admin.get(f"/workflows/{made['id']}/edges").json()}
    assert {edge["source"] for edge in edges.values()} == {ids["first"]}
    assert edges[ids["second"]]["values"] == ["result.items.0.output"]
    assert (edges[ids["third"]]["values"], edges[ids["third"]]["artifacts"]) == ([], [])
    is_problem(admin.get("/workflows/wf-ffffffffffff/edges"), 404, "not_found")
    admin.post(f"/workflows/{made['id']}/cancel")
