"""What a quota refuses is not on the disk either, whichever way it comes in."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.api.support import Running, submit
from tunefleet.client import Client

ROOM = 1_000_000
SIZE = 3 * ROOM


@pytest.fixture
def small(running: Running, admin: httpx.Client) -> Iterator[httpx.Client]:
    """A member of a project with room for a megabyte."""
    name = f"small-{secrets.token_hex(4)}"
    admin.post("/projects", json={"name": name, "storage_bytes": ROOM})
    key = admin.post("/keys", json={"name": "m", "role": "member", "project": name}).json()["secret"]
    with running.client(key) as client:
        yield client


def as_a_blob(client: httpx.Client, data: bytes) -> httpx.Response:
    headers = {"Upload-Offset": "0", "Upload-Length": str(len(data))}
    return client.put(f"/blobs/{hashlib.sha256(data).hexdigest()}", content=data, headers=headers)


def as_a_result(client: httpx.Client, data: bytes) -> httpx.Response:
    task_id = submit(client)
    return client.post(f"/results/{task_id}/files", files={"file": ("x.bin", data, "application/octet-stream")})


def as_a_job_of_its_own(client: httpx.Client, data: bytes) -> httpx.Response:
    """Whoever has a key may register a job, and has then the token of a job."""
    root = str(client.base_url).removesuffix("/api/v1/")
    headers = {"Authorization": client.headers["Authorization"]}
    registered = httpx.post(f"{root}/api/training/local/jobs", json={"job_id": "mine-small"}, headers=headers)
    token = registered.json()["job_token"]
    with httpx.Client(base_url=client.base_url, headers={"Authorization": f"Bearer {token}"}) as job:
        return as_a_blob(job, data)


def test_data_are_cut_for_a_federation_where_their_chunks_fit(
    running: Running, small: httpx.Client, tmp_path: Path
) -> None:
    """What is cut again is kept already: it takes no more of a quota that is nearly used up."""
    rows = b"".join(b'{"n": %d, "text": "%s"}\n' % (number, b"x" * 400) for number in range(1000))
    with Client(running.url, small.headers["Authorization"].removeprefix("Bearer ")) as client:
        (tmp_path / "rows.jsonl").write_bytes(rows)
        client.data.push(tmp_path / "rows.jsonl", name="rows")
    wanted = {"dataset": "rows", "chunk_size": 500}
    assert small.post("/federations", json=wanted).status_code == 201
    before = running.core.blobs.kept_before(float("inf"))
    assert small.post("/federations", json=wanted).status_code == 201
    refused = small.post("/federations", json={"dataset": "rows", "chunk_size": 499})
    assert refused.json()["type"] == "urn:tunefleet:error:over_quota", refused.text
    assert running.core.blobs.kept_before(float("inf")) == before


@pytest.mark.parametrize("way", [as_a_blob, as_a_result, as_a_job_of_its_own])
def test_what_is_over_the_quota_leaves_nothing_behind(
    running: Running, small: httpx.Client, way: Callable[[httpx.Client, bytes], httpx.Response]
) -> None:
    before = running.core.blobs.kept_before(float("inf"))
    for _ in range(3):
        reply = way(small, os.urandom(SIZE))
        assert (reply.status_code, reply.json()["type"]) == (507, "urn:tunefleet:error:over_quota"), reply.text
    assert running.core.blobs.kept_before(float("inf")) == before
    assert sum(part.stat().st_size for part in running.core.blobs.uploads.glob("*.part")) < ROOM


def test_what_a_job_says_of_its_end_is_bounded_and_its_result_counts(running: Running, small: httpx.Client) -> None:
    root, long = str(small.base_url).removesuffix("/api/v1/"), 7 * ROOM // 10
    mine = {"Authorization": small.headers["Authorization"]}
    where = f"{root}/api/training/local"
    brought = []
    for name in ("one", "two"):
        registered = httpx.post(f"{where}/jobs", json={"job_id": name}, headers=mine)
        job = {"Authorization": f"Bearer {registered.json()['job_token']}"}
        status = f"{where}/{name}/status"
        assert httpx.patch(status, json={"status": "running"}, headers=job).status_code == 200
        far = httpx.patch(status, json={"status": "paused", "checkpoint": "c" * long}, headers=job)
        assert far.status_code == 400, far.text
        result = {"task_id": name, "result": {"x": "x" * long}}
        brought.append(httpx.post(f"{root}/api/v1/results", json=result, headers=job).status_code)
        failed = httpx.patch(status, json={"status": "failed", "error": "T\n" + "e" * long}, headers=job)
        assert failed.status_code == 200, failed.text
        assert len(small.get(f"/tasks/{name}").text) < 100_000
        resumed = httpx.post(f"{where}/{name}/resume", json={"checkpoint_path": "c" * long}, headers=mine)
        assert resumed.status_code == 400, resumed.text
    assert brought == [200, 507]


def test_half_a_character_is_the_senders_fault(admin: httpx.Client) -> None:
    body = b'{"action": "cancel", "task_ids": ["\\ud800"]}'
    reply = admin.post("/tasks/bulk", content=body, headers={"Content-Type": "application/json"})
    assert (reply.status_code, "lone surrogate" in reply.text) == (422, True), reply.text
