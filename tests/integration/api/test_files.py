"""Files in and out: resumable uploads, digests, ranges, artifacts; in constant memory, and beside others."""

from __future__ import annotations

import hashlib
import io
import itertools
import logging
import os
import socket
import tarfile
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.integration.api.support import HandWorker, Running, is_problem, submit, until
from tunefleet.artifacts import blobs, manifest_digest
from tunefleet.schemas.api import FileEntry

MIB = 1 << 20


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(client: httpx.Client, data: bytes, *, digest: str | None = None, offset: int = 0) -> httpx.Response:
    headers = {"Upload-Offset": str(offset), "Upload-Length": str(len(data))}
    return client.put(f"/blobs/{digest or digest_of(data)}", content=data[offset:], headers=headers)


def missing(client: httpx.Client, data: bytes) -> list[dict[str, object]]:
    entry = {"path": "a", "digest": digest_of(data), "size_bytes": len(data)}
    reply = client.post("/blobs/missing", json={"blobs": [entry]})
    assert reply.status_code == 200, reply.text
    found: list[dict[str, object]] = reply.json()["missing"]
    return found


def publish(client: httpx.Client, name: str, files: dict[str, bytes], **params: str) -> httpx.Response:
    entries = [FileEntry(path=path, digest=digest_of(data), size_bytes=len(data)) for path, data in files.items()]
    body = {
        "name": name,
        "files": [entry.model_dump() for entry in entries],
        "digest": manifest_digest(entries),
    }
    return client.post("/artifacts", json=body, params=params)


@pytest.mark.parametrize("size", [0, 1, 3 * MIB + 17])
def test_upload_publish_download(admin: httpx.Client, size: int) -> None:
    data = os.urandom(size)
    assert missing(admin, data) == [{"digest": digest_of(data), "offset": 0}]
    assert put(admin, data).status_code == 201
    assert missing(admin, data) == []
    assert put(admin, data).status_code in {200, 201}
    artifact = publish(admin, f"data-{size}", {"dir/a b.bin": data})
    assert artifact.status_code == 201, artifact.text
    reply = admin.get(f"/blobs/{digest_of(data)}")
    assert reply.content == data
    assert reply.headers["etag"] == f'"{digest_of(data)}"'
    by_name = admin.get(f"/artifacts/{artifact.json()['id']}/files/dir/a b.bin")
    assert by_name.content == data
    assert by_name.headers["content-type"] == "application/octet-stream"
    assert "attachment" in by_name.headers["content-disposition"]
    assert "sandbox" in by_name.headers["content-security-policy"]


def test_range_and_etag(admin: httpx.Client) -> None:
    data = os.urandom(2 * MIB)
    put(admin, data)
    publish(admin, "ranged", {"x": data})
    url = f"/blobs/{digest_of(data)}"
    etag = f'"{digest_of(data)}"'
    rest = admin.get(url, headers={"Range": f"bytes={MIB}-"})
    assert rest.status_code == 206
    assert rest.content == data[MIB:]
    assert rest.headers["content-range"] == f"bytes {MIB}-{2 * MIB - 1}/{2 * MIB}"
    assert admin.get(url, headers={"Range": "bytes=0-9", "If-Range": etag}).content == data[:10]
    assert admin.get(url, headers={"Range": "bytes=0-9", "If-Range": '"other"'}).status_code == 200
    beyond = admin.get(url, headers={"Range": f"bytes={3 * MIB}-"})
    assert is_problem(beyond, 416, "range_invalid")["hint"]
    assert beyond.headers["content-range"] == f"bytes */{2 * MIB}"
    assert is_problem(admin.get(url, headers={"Range": "lines=1-2"}), 400, "range_invalid")
    unchanged = admin.get(url, headers={"If-None-Match": etag})
    assert unchanged.status_code == 304
    assert unchanged.content == b""


def test_cut_upload_goes_on_where_it_broke(
    admin: httpx.Client, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    data = os.urandom(5 * MIB + 11)
    digest, sent = digest_of(data), 3 * MIB + 5
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        head = (
            f"PUT /api/v1/blobs/{digest} HTTP/1.1\r\nHost: {host}\r\nX-API-Key: {running.admin_key}\r\n"
            f"Upload-Offset: 0\r\nUpload-Length: {len(data)}\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        raw.sendall(head.encode() + data[:sent])
    until(lambda: missing(admin, data)[0]["offset"] == sent)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    wrong = put(admin, data, offset=sent - 1)
    assert is_problem(wrong, 409, "offset_conflict")["cursor"] == sent
    assert put(admin, data, offset=sent).status_code == 201
    assert admin.get(f"/blobs/{digest}").status_code in {200, 404}
    publish(admin, "resumed", {"x": data})
    assert admin.get(f"/blobs/{digest}").content == data


def test_short_upload_is_kept_and_continued(admin: httpx.Client) -> None:
    data = os.urandom(MIB)
    headers = {"Upload-Offset": "0", "Upload-Length": str(len(data))}
    part = admin.put(f"/blobs/{digest_of(data)}", content=data[:1000], headers=headers)
    assert part.status_code == 202
    assert part.json() == {"cursor": 1000}
    assert put(admin, data, offset=1000).status_code == 201


def test_wrong_digest_is_refused_and_forgotten(admin: httpx.Client) -> None:
    data, other = os.urandom(1000), os.urandom(1000)
    is_problem(put(admin, data, digest=digest_of(other)), 422, "artifact_invalid")
    assert missing(admin, other) == [{"digest": digest_of(other), "offset": 0}]
    assert put(admin, other).status_code == 201


@pytest.mark.parametrize(
    ("digest", "headers"),
    [
        ("0" * 64, {}),
        ("0" * 64, {"Upload-Offset": "-1", "Upload-Length": "3"}),
        ("0" * 64, {"Upload-Offset": "x", "Upload-Length": "3"}),
        ("..", {"Upload-Offset": "0", "Upload-Length": "3"}),
        ("ABC", {"Upload-Offset": "0", "Upload-Length": "3"}),
        ("%2e%2e%2f%2e%2e%2fetc%2fpasswd", {"Upload-Offset": "0", "Upload-Length": "3"}),
    ],
)
def test_senseless_uploads_are_refused(admin: httpx.Client, digest: str, headers: dict[str, str]) -> None:
    assert admin.put(f"/blobs/{digest}", content=b"abc", headers=headers).status_code in {404, 405, 422}


def test_more_than_announced_is_refused(admin: httpx.Client) -> None:
    headers = {"Upload-Offset": "0", "Upload-Length": "3"}
    reply = admin.put(f"/blobs/{digest_of(b'abcdef')}", content=b"abcdef", headers=headers)
    assert reply.status_code in {413, 422}, reply.text


def test_unknown_files_are_not_found(admin: httpx.Client) -> None:
    is_problem(admin.get(f"/blobs/{'1' * 64}"), 404, "not_found")
    data = b"something"
    put(admin, data)
    artifact = publish(admin, "known", {"x": data}).json()
    is_problem(admin.get(f"/artifacts/{artifact['id']}/files/y"), 404, "not_found")
    is_problem(admin.get("/artifacts/art-ffffffffffff"), 404, "not_found")
    is_problem(publish(admin, "absent", {"x": b"never uploaded"}), 422, "artifact_invalid")


def test_attempt_publishes_for_its_own_task(admin: httpx.Client, hand: HandWorker, running: Running) -> None:
    task_id = submit(admin)
    token = hand.take(task_id)
    data = os.urandom(100)
    with running.client(token) as attempt:
        assert missing(attempt, data)
        assert put(attempt, data).status_code == 201
        assert publish(attempt, "adapter", {"a.bin": data}, task_id=task_id).status_code == 201
        other = submit(admin)
        is_problem(publish(attempt, "stolen", {"a.bin": data}, task_id=other), 403, "forbidden")
    listed = admin.get(f"/tasks/{task_id}/artifacts").json()["items"]
    assert [artifact["name"] for artifact in listed] == ["adapter"]
    hand.finish(token)


@pytest.mark.proof
def test_large_file_in_constant_memory(admin: httpx.Client) -> None:
    piece = os.urandom(MIB)
    count = 192
    whole = hashlib.sha256()
    for _ in range(count):
        whole.update(piece)
    digest = whole.hexdigest()

    def pieces() -> Iterator[bytes]:
        for _ in range(count):
            yield piece

    before = psutil.Process().memory_info().rss
    headers = {"Upload-Offset": "0", "Upload-Length": str(count * MIB), "Content-Length": str(count * MIB)}
    assert admin.put(f"/blobs/{digest}", content=pieces(), headers=headers).status_code == 201
    entry = FileEntry(path="big", digest=digest, size_bytes=count * MIB)
    body = {"name": "big", "files": [entry.model_dump()], "digest": manifest_digest([entry])}
    assert admin.post("/artifacts", json=body).status_code == 201
    back = hashlib.sha256()
    with admin.stream("GET", f"/blobs/{digest}") as reply:
        for chunk in reply.iter_bytes(MIB):
            back.update(chunk)
    assert back.hexdigest() == digest
    assert psutil.Process().memory_info().rss - before < 48 * MIB


def test_server_answers_in_the_middle_of_each_work_for_an_upload(
    admin: httpx.Client, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[str] = []

    def asking(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def ask_and_work(*args: Any) -> Any:
            # On the event loop this would wait for itself.
            assert httpx.get(f"{running.url}/api/v1/healthz", timeout=30).status_code == 200
            answered.append(name)
            return work(*args)

        return ask_and_work

    for name in ("_hash_rest", "write_all", "finish", "close"):
        monkeypatch.setattr(blobs.Upload, name, asking(name, getattr(blobs.Upload, name)))
    assert put(admin, os.urandom(3 * MIB)).status_code == 201
    works = [name for name, _ in itertools.groupby(answered)]
    assert works == ["_hash_rest", "write_all", "finish", "_hash_rest", "close"]


def test_all_files_of_an_artifact_are_one_tar_of_known_length(admin: httpx.Client, running: Running) -> None:
    files = {
        "adapter_model.safetensors": os.urandom(3 * MIB + 17),
        "empty": b"",
        "sub/größe.json": b"{}" * 256,
        "d" * 90 + "/" + "n" * 120: b"long",
    }
    for data in files.values():
        put(admin, data)
    made = publish(admin, "tasks/run 1/adapter", files).json()
    url = f"/artifacts/{made['id']}/archive"
    reply = admin.get(url)
    assert reply.status_code == 200
    assert int(reply.headers["content-length"]) == len(reply.content)
    assert int(admin.head(url).headers["content-length"]) == len(reply.content)
    assert reply.headers["content-disposition"] == "attachment; filename*=UTF-8''adapter.tar"
    assert reply.headers["x-content-type-options"] == "nosniff"
    with tarfile.open(fileobj=io.BytesIO(reply.content)) as archive:
        members = {member.name: archive.extractfile(member) for member in archive.getmembers()}
        found = {name: file.read() for name, file in members.items() if file is not None}
    assert found == {f"adapter/{path}": data for path, data in files.items()}
    is_problem(admin.get("/artifacts/art-ffffffffffff/archive"), 404, "not_found")
    with running.client() as nobody:
        is_problem(nobody.get(url), 401, "unauthenticated")
