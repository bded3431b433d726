"""A worker whose result the server has no room for: it says so, keeps it, and delivers it when there is room."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.acceptance.conftest import ENVIRONMENT, PATIENCE_S
from tests.acceptance.story import Story, until
from tests.libraries import required
from tunefleet.artifacts import manifest_digest
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.schemas.api import FileEntry

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(240)]

_LIMIT = 40 << 20
_LEFT = 10_000
TRAINING = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: full}
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {path: "builtin:gsm8k", prompt_column: question, response_column: answer, max_samples: 8}
  lora: {r: 8, alpha: 16, target_modules: [q_proj, v_proj]}
  training: {max_steps: 2, batch_size: 1, max_seq_length: 64, logging_steps: 1}
"""


def test_a_result_that_finds_no_room_waits_at_the_worker_and_is_delivered_without_another_run(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    required("trl")
    data = tmp_path / "fleet"
    environment = ENVIRONMENT | {"TUNEFLEET_STORAGE_LIMIT_BYTES": str(_LIMIT), "TUNEFLEET_GARBAGE_GRACE_S": "0"}
    with LocalFleet(data, port=free_port(), environment=environment, save_client=False) as fleet:
        fleet.await_workers(PATIENCE_S)
        with Client(fleet.url, fleet.key) as client, _admin(fleet) as admin:
            taking = _fill(admin, b"f" * (_LIMIT - _LEFT))
            task_id = client.submit(TRAINING).task_id
            until(lambda: "is retried" in _why(admin, task_id), "it is said what it waits for", within_s=120)
            why = _why(admin, task_id)
            assert "Storage limit exceeded" in why
            assert "is retried" in why
            assert admin.get(f"/tasks/{task_id}").json()["status"] == "running", "it is not lost, and has not failed"
            assert admin.delete(f"/artifacts/{taking}").status_code in {200, 204}
            assert admin.post("/prune", json={"older_than_s": 86_400}).json()["freed_bytes"] == _LIMIT - _LEFT
            task = client.tasks.wait(task_id, timeout_s=120)
            assert (task.status, task.error, task.attempts) == ("completed", None, 1)
            names = {each["name"] for each in admin.get("/artifacts", params={"task_id": task_id}).json()["items"]}
            assert "final_lora" in names
            assert len(Story(fleet, task_id, 2).launches()) == 1


def _admin(fleet: LocalFleet) -> httpx.Client:
    return httpx.Client(
        base_url=f"{fleet.url}/api/v1", headers={"Authorization": f"Bearer {fleet.key}"}, timeout=60, trust_env=False
    )


def _fill(admin: httpx.Client, data: bytes) -> str:
    """Publish a file that leaves next to no room; returns the artifact's id."""
    digest = hashlib.sha256(data).hexdigest()
    headers = {"Upload-Offset": "0", "Upload-Length": str(len(data))}
    assert admin.put(f"/blobs/{digest}", content=data, headers=headers).status_code == 201
    entry = FileEntry(path="large.bin", digest=digest, size_bytes=len(data))
    body = {"name": "large", "digest": manifest_digest([entry]), "files": [entry.model_dump()]}
    reply = admin.post("/artifacts", json=body)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["id"])


def _why(admin: httpx.Client, task_id: str) -> str:
    return str(admin.get(f"/tasks/{task_id}/why").json())
