"""A server that keeps its files in a real S3 service: uploads pass through it, downloads lead to the service."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.api.support import HandWorker, Running, is_problem, submit
from tests.integration.s3.gateway import BUCKET, SECRET_KEY, Gateway
from tunefleet.artifacts import manifest_digest
from tunefleet.client import Client
from tunefleet.client.external.download import Address, Downloader
from tunefleet.schemas.api import FileEntry

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

DATA = os.urandom(1 << 20)
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(scope="module")
def running(
    start: Callable[..., Running], s3_server: Gateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    keys = s3_server.environment
    running = start(
        tmp_path_factory.mktemp("data"),
        artifacts=f"s3://{BUCKET}/server",
        s3_endpoint=s3_server.endpoint,
        s3_access_key=keys["AWS_ACCESS_KEY_ID"],
        s3_secret_key=SECRET_KEY,
        lost_after_s=600,
    )
    yield running
    running.stop()
    running.core.close()


def put(client: httpx.Client, data: bytes, offset: int = 0, end: int | None = None) -> httpx.Response:
    headers = {"Upload-Offset": str(offset), "Upload-Length": str(len(data))}
    return client.put(f"/blobs/{hashlib.sha256(data).hexdigest()}", content=data[offset:end], headers=headers)


def test_a_download_leads_to_the_service_with_a_link_that_lasts(
    admin: httpx.Client, s3_server: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="tunefleet")
    assert put(admin, DATA, end=1000).status_code == 202
    assert put(admin, DATA, offset=1000).status_code == 201
    entry = FileEntry(path="a b.bin", digest=DIGEST, size_bytes=len(DATA))
    body = {"name": "n", "files": [entry.model_dump()], "digest": manifest_digest([entry])}
    artifact = admin.post("/artifacts", json=body).json()["id"]
    for path in (f"/blobs/{DIGEST}", f"/artifacts/{artifact}/files/a b.bin"):
        led = admin.get(path, headers={"Range": "bytes=5-9"})
        assert (led.status_code, led.content, led.headers["cache-control"]) == (307, b"", "no-store")
        link = httpx.URL(led.headers["location"])
        assert f"{link.scheme}://{link.host}:{link.port}" == s3_server.endpoint
        assert 0 < int(link.params["X-Amz-Expires"]) <= 900
        assert httpx.get(link).content == DATA
        part = httpx.get(link, headers={"Range": "bytes=5-9"})
        assert (part.status_code, part.content) == (206, DATA[5:10])
        assert SECRET_KEY not in str(link)
        assert str(link) not in caplog.text
    assert httpx.get(link).headers["content-disposition"] == 'attachment; filename="a b.bin"'
    told = admin.head(f"/artifacts/{artifact}/files/a b.bin")
    assert (told.status_code, told.headers["content-length"]) == (200, str(len(DATA))), "a link is good for GET alone"
    known = admin.get(f"/blobs/{DIGEST}", headers={"If-None-Match": f'"{DIGEST}"'})
    assert (known.status_code, "location" in known.headers) == (304, False)


def test_who_may_not_read_gets_no_link(running: Running, admin: httpx.Client, worker: httpx.Client) -> None:
    assert put(admin, b"private").status_code == 201
    digest = hashlib.sha256(b"private").hexdigest()
    with running.client() as nobody:
        for client, status in ((nobody, 401), (worker, 403)):
            answer = client.get(f"/blobs/{digest}")
            assert answer.status_code in {status, 404}
            assert "location" not in answer.headers
    is_problem(admin.get(f"/blobs/{'0' * 64}"), 404, "not_found")


@pytest.mark.story
def test_our_clients_push_and_fetch(running: Running, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(DATA[::-1])
    (folder / "empty").touch()
    with Client(running.url, running.admin_key) as client:
        client.artifacts.push(folder, name="model")
        client.artifacts.fetch("model", tmp_path / "copy")
        half = tmp_path / "half"
        half.mkdir()
        digest = hashlib.sha256(DATA[::-1]).hexdigest()
        (half / f".weights.bin.{digest[:12]}.part").write_bytes(DATA[::-1][:300_000])
        client.artifacts.fetch("model", half)
    for copy in (tmp_path / "copy", half):
        assert (copy / "weights.bin").read_bytes() == DATA[::-1]
        assert (copy / "empty").read_bytes() == b""
    assert not (running.core.blobs.root / "blobs").exists(), "nothing is kept in the server's folder"
    assert list(running.core.blobs.uploads.iterdir()) == []


def test_files_of_a_task_by_key_and_by_link(
    running: Running, admin: httpx.Client, hand: HandWorker, tmp_path: Path
) -> None:
    task_id = submit(admin)
    token = hand.take(task_id)
    with running.client(token) as attempt:
        sent = attempt.post(f"/results/{task_id}/files", files={"file": ("made.tar.gz", DATA)})
        assert sent.status_code == 200, sent.text
    (file,) = [each for each in admin.get(f"/results/{task_id}/files").json()["files"] if each["name"] == "made.tar.gz"]
    assert httpx.get(file["url"]).status_code == 307
    assert httpx.get(file["url"], follow_redirects=True).content == DATA
    fetched = Downloader(tmp_path, allowed=["127.0.0.1"]).fetch(Address(file["url"]))
    assert fetched.read_bytes() == DATA
    hand.finish(token)
