"""What somebody tries who has a token and means no good, or has a broken line: nothing of it counts or stays.

What an archive or a safetensors file may hold is tested where they are read; here it is the way in.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.integration.api.federated import Worker, arrays, create, tarred, workers
from tests.integration.api.support import Running, is_problem, until
from tests.integration.api.test_federations import Sender
from tunefleet.federation import CONFIG, TENSORS

DEEP = b'{"r":' + b"[" * 200_000


@pytest.fixture
def made(admin: httpx.Client) -> dict[str, Any]:
    return create(admin, min_workers=50)


@pytest.fixture
def one(running: Running, made: dict[str, Any], tmp_path: Path) -> Iterator[Worker]:
    with workers(running, made, tmp_path, "1") as (one,):
        yield one


@pytest.fixture
def sender(running: Running, made: dict[str, Any], tmp_path: Path) -> Iterator[Sender]:
    sender = Sender(running, made, "w", tmp_path)
    yield sender
    sender.client.close()


def is_clean(running: Running) -> bool:
    return not list((running.core.blobs.root / "landing").iterdir())


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("{job}/w%C3%B6rker/1", 400), ("{job}/%EF%BC%91/1", 400), ("{job}/%00/1", 400), ("{job}/-1/1", 400),
        ("{job}/a%20b/1", 400), ("{job}/" + "x" * 200 + "/1", 400), ("{job}/..%2F..%2Fetc/1", 404),
        (f"{{job}}/1/{2**63}", 400), ("{job}/1/-1", 400), ("{job}/1/1.5", 400), ("{job}/1/%EF%BC%99", 400),
        ("99999999999999999999/1/1", 404), (f"{2**63}/1/1", 404), ("999999999999999999/1/1", 404), ("0/1/1", 404),
        ("%EF%BC%91/1/1", 404), ("%00/1/1", 404), ("-1/1/1", 404), ("x" * 100 + "/1/1", 400),
    ],
)  # fmt: skip
def test_names_and_numbers_that_are_none_are_refused(one: Worker, admin: httpx.Client, path: str, status: int) -> None:
    where = f"/api/training/adapters/{path.format(job=one.job)}"
    archive = tarred(one.members(arrays(1)))
    reply = one.client.post(where, files={"adapter": ("a.tar.gz", archive)}, data={"numExamples": 1})
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    assert admin.get(f"/federations/{one.job}/updates").json()["items"] == []


@pytest.mark.parametrize(
    ("query", "status"),
    [({"after": -1}, 400), ({"after": 2**64}, 400), ({"wait_s": "nan"}, 400), ({"wait_s": "inf"}, 400)],
)
def test_a_poll_that_cannot_be_meant_is_refused(one: Worker, query: dict[str, Any], status: int) -> None:
    assert one.poll(**query).status_code == status


@pytest.mark.parametrize(
    "body",
    [
        b"{}", b"[]", b"nope", b'{"workerId": null}', b'{"workerId": true}', b'{"workerId": 1.5}', DEEP,
        b'{"workerId": "a b"}', b'{"workerId": 1, "completedChunk": 99999999999999999999}',
        b'{"workerId": 1, "completedChunk": -1}',
    ],
)  # fmt: skip
def test_a_claim_that_cannot_be_read_is_400(one: Worker, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    reply = one.client.post(f"/api/training/jobs/{one.job}/claim-chunk", content=body, headers=headers)
    assert reply.status_code == 400, reply.text


def test_files_that_lie_about_themselves_are_422(one: Worker) -> None:
    files = one.members(arrays(1))
    said = json.loads(files[CONFIG])
    bad: list[dict[str, bytes]] = [
        {CONFIG: DEEP},
        {CONFIG: b"[]"},
        {CONFIG: json.dumps(said).encode("utf-16")},
        *({CONFIG: json.dumps({**said, **more}).encode()} for more in (
            {"r": 2**70}, {"r": True}, {"r": -1}, {"lora_alpha": 1e308}, {"lora_alpha": float("nan")},
            {"base_model_name_or_path": 7}, {"peft_type": ["LORA"]},
        )),
        {TENSORS: b"123"},
        {TENSORS: struct.pack("<Q", 2**63) + b"{}"},
        {TENSORS: struct.pack("<Q", len(DEEP)) + DEEP},
        {TENSORS: files[TENSORS][:-1]},
        {TENSORS: files[TENSORS] + b"more"},
    ]  # fmt: skip
    for each in bad:
        reply = one.send(tarred({**files, **each}))
        assert (reply.status_code, reply.json()["code"]) == (422, "ADAPTER_REFUSED"), (each, reply.text)
    archive = tarred(files)
    for broken in (archive[:-8], archive[:-1], archive[:40] + b"\0" * 8 + archive[48:]):
        reply = one.send(broken)
        assert (reply.status_code, reply.json()["code"]) == (422, "ARTIFACT_INVALID"), reply.text
    assert one.send(archive).status_code == 200


@pytest.mark.parametrize("length", ["more", "less"])
def test_a_body_of_another_length_than_was_said_leaves_nothing(
    one: Worker, running: Running, admin: httpx.Client, length: str
) -> None:
    request = one.client.build_request(
        "POST",
        f"/api/training/adapters/{one.job}/1/100",
        files={"adapter": ("a.tar.gz", tarred(one.members(arrays(1))))},
        data={"numExamples": 1},
    )
    body = request.read()
    said = len(body) + 1000 if length == "more" else len(body) // 2
    at = urlsplit(running.url)
    head = f"POST {request.url.path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {one.token}\r\n"
    head += f"Content-Type: {request.headers['content-type']}\r\nContent-Length: {said}\r\n\r\n"
    with socket.create_connection((at.hostname, at.port or 80), timeout=30) as line:
        line.sendall(head.encode() + body)
        if length == "less":
            assert b" 400 " in line.recv(4096).split(b"\r\n")[0]
    until(lambda: is_clean(running))
    assert admin.get(f"/federations/{one.job}/updates").json()["items"] == []
    assert one.send(tarred(one.members(arrays(1)))).status_code == 200


def test_a_file_that_goes_on_with_other_bytes_is_not_the_one_that_was_named(sender: Sender) -> None:
    data = sender.weights(arrays(1))
    half, digest = len(data) // 2, hashlib.sha256(data).hexdigest()
    where = f"/federations/{sender.made['id']}/blobs/{digest}"

    def put(part: bytes, offset: int, total: int = len(data)) -> httpx.Response:
        headers = {"Upload-Offset": str(offset), "Upload-Length": str(total)}
        return sender.client.put(where, content=part, headers=headers)

    assert put(data[:half], 0).status_code == 202
    assert put(data[half:], half + 1).status_code == 409, "nothing is left out"
    other = bytes(reversed(data[half:]))
    is_problem(put(other, half), 422, "artifact_invalid")
    is_problem(sender.announce(sender.body(data)), 422, "artifact_invalid")
    assert put(data[half:], half).json()["cursor"] == 0, "it begins anew"
    assert put(data, 0).status_code == 201
    assert sender.announce(sender.body(data)).json()["counted"]


def test_one_federation_cannot_count_what_was_sent_to_another(
    running: Running, admin: httpx.Client, sender: Sender, tmp_path: Path
) -> None:
    data = sender.weights(arrays(1))
    assert sender.put(data).status_code == 201
    stranger = Sender(running, create(admin), "w", tmp_path)
    is_problem(stranger.announce(stranger.body(data)), 422, "artifact_invalid")
    where = f"/federations/{sender.made['id']}"
    is_problem(stranger.client.post(f"{where}/updates", json=sender.body(data)), 403, "forbidden")
    is_problem(stranger.client.put(f"{where}/members/w", json={}), 403, "forbidden")
    is_problem(stranger.client.post(f"{where}/aggregate"), 403, "forbidden")
    stranger.client.close()


def test_a_link_opens_what_it_was_made_for_and_nothing_else(
    running: Running, admin: httpx.Client, tmp_path: Path
) -> None:
    made = create(admin, min_workers=1)
    with workers(running, made, tmp_path, "1") as (one,):
        one.upload(arrays(1))
        link = one.await_version(1)["downloadUrl"]
    query = link.partition("?")[2]
    signed = query.partition("&")[2]
    for path in (
        f"/api/datasets/chunks/{made['id']}/1/download?{signed}",
        f"/api/training/checkpoints/{create(admin, min_workers=1)['id']}/download?{query}",
        f"/api/training/checkpoints/{made['id']}/download?{query}0",
        f"/api/training/checkpoints/{made['id']}/download?version=1&expires={2**40}&signature=",
    ):
        assert httpx.get(running.url + path).status_code in {403, 404}, path
    for path in (f"/api/v1/federations/{made['id']}/versions/1/adapter", f"/api/training/jobs/{made['id']}/checkpoint"):
        assert httpx.get(f"{running.url}{path}?{signed}").status_code in {401, 422}, "links are good for archives only"
    assert httpx.get(link).status_code == 200
