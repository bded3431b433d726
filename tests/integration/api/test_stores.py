"""Servers that keep their files in each kind of store, and one with a limit for all files."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.api.federated import arrays, create, tarred, workers
from tests.integration.api.support import Running, is_problem
from tests.integration.clouds import azurite, google
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.timeout(180)]


@pytest.mark.parametrize("kind", ["gcs", "azure", "shared folder"])
def test_our_clients_push_and_fetch(
    kind: str, start: Callable[..., Running], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    options: dict[str, Any]
    if kind == "gcs":
        emulator = request.getfixturevalue("gcs_server")
        options = {"artifacts": f"gs://{google.BUCKET}/server", "gcs_endpoint": emulator.endpoint,
                   "gcs_key_file": emulator.key_file}  # fmt: skip
    elif kind == "azure":
        service = request.getfixturevalue("azure_server")
        options = {"artifacts": f"az://{azurite.CONTAINER}/server", "azure_connection": service.connection}
    else:
        (tmp_path / "shared").mkdir()
        options = {"artifacts": f"file://{tmp_path / 'shared'}"}
    running = start(tmp_path / "data", **options)
    try:
        folder = tmp_path / "model"
        folder.mkdir()
        data = os.urandom(1 << 20)
        (folder / "weights.bin").write_bytes(data)
        (folder / "empty").touch()
        with Client(running.url, running.admin_key) as client:
            client.artifacts.push(folder, name="model")
            client.artifacts.fetch("model", tmp_path / "copy")
        assert (tmp_path / "copy/weights.bin").read_bytes() == data
        assert (tmp_path / "copy/empty").read_bytes() == b""
        assert not (tmp_path / "data/artifacts/blobs").exists(), "nothing is kept in the server's folder"
        with running.client(running.admin_key) as admin:
            assert admin.get("/server").json()["artifacts"] == kind
    finally:
        running.stop()
        running.core.close()


def put(client: httpx.Client, data: bytes) -> httpx.Response:
    headers = {"Upload-Offset": "0", "Upload-Length": str(len(data))}
    return client.put(f"/blobs/{hashlib.sha256(data).hexdigest()}", content=data, headers=headers)


def test_beyond_its_limit_a_server_takes_no_file_and_loses_none(
    start: Callable[..., Running], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="tunefleet")
    options: dict[str, Any] = {"storage_limit_bytes": 10_000, "garbage_grace_s": 0.0}
    running = start(tmp_path, **options)
    with running.client(running.admin_key) as admin:
        assert put(admin, b"a" * 6000).status_code == 201
        refused = is_problem(put(admin, b"b" * 6000), 507, "machine")
        assert refused["detail"] == "Storage limit exceeded: 6,000 of 10,000 bytes used, 6,000 needed."
        assert "TUNEFLEET_STORAGE_LIMIT_BYTES" in refused["hint"]
        query = {"blobs": [{"path": "a", "digest": hashlib.sha256(b"a" * 6000).hexdigest(), "size_bytes": 6000}]}
        assert admin.post("/blobs/missing", json=query).json()["missing"] == [], "what is here is not asked for"
        assert "allows; beyond it" not in caplog.text
        assert put(admin, b"c" * 3000).status_code == 201
        assert "Files use 9000 of the 10000 bytes" in caplog.text
    running.stop()
    running.core.close()
    running = start(tmp_path, **options)
    try:
        assert running.core.blobs.used_bytes == 9000, "counted anew at the start"
        with running.client(running.admin_key) as admin:
            is_problem(put(admin, b"b" * 6000), 507, "machine")
            kept = admin.get(f"/blobs/{hashlib.sha256(b'a' * 6000).hexdigest()}")
            assert kept.content == b"a" * 6000
    finally:
        running.stop()
        running.core.close()


def test_an_update_beyond_the_limit_is_refused_and_taken_once_there_is_room(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    running = start(tmp_path / "data", storage_limit_bytes=100)
    try:
        with running.client(running.admin_key) as admin:
            made = create(admin, min_workers=50, base_model="builtin:tiny")
        with workers(running, made, tmp_path, "1") as (one,):
            archive = tarred(one.members(arrays(1)))
            refused = one.send(archive, step=100)
            assert refused.status_code == 507, refused.text
            assert "TUNEFLEET_STORAGE_LIMIT_BYTES" in refused.text
            assert running.core.blobs.used_bytes == 0
            running.core.blobs.limit_bytes = 1 << 20
            assert one.send(archive, step=100).status_code == 200
            assert running.core.blobs.used_bytes > 100
    finally:
        running.stop()
        running.core.close()
