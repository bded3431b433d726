"""An update with its file in one request, and a version with its file for who waits for it."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.integration.api.federated import arrays, create
from tests.integration.api.support import Running, until
from tests.unit.federation.adapters import Arrays, config, factors, save
from tunefleet.client.federation import transfer
from tunefleet.client.federation.client import FederatedClient
from tunefleet.errors import UnreachableError
from tunefleet.federation import TENSORS, AdapterFile
from tunefleet.federation.quantize import write_int8
from tunefleet.schemas.federated import UpdateCreate

MIB = 1 << 20
LARGE = 3 * MIB
"""Longer than what is gathered in memory."""


@pytest.fixture
def made(admin: httpx.Client) -> dict[str, Any]:
    return create(admin, min_workers=2)


def file_of(adapter: Arrays, folder: Path) -> bytes:
    save(folder / "saved", adapter)
    return (folder / "saved" / TENSORS).read_bytes()


def large(seed: int) -> Arrays:
    name = "model.layers.0.self_attn.q_proj"
    return factors(np.random.default_rng(seed), shapes={name: (LARGE // 8, 5)})


def told(file: bytes, worker: str, **more: Any) -> dict[str, Any]:
    digest = hashlib.sha256(file).hexdigest()
    return {"worker": worker, "step": 1, "num_examples": 5, "sha256": digest, "config": config(), **more}


def put(client: httpx.Client, id_: str, update: Mapping[str, Any], file: bytes) -> httpx.Response:
    head = json.dumps(update).encode()
    return client.put(f"/federations/{id_}/updates", content=head + file, headers={"Update-Length": str(len(head))})


@pytest.mark.parametrize("adapter", [arrays, large])
def test_an_update_and_its_file_count_by_one_request_and_once(
    admin: httpx.Client, made: dict[str, Any], tmp_path: Path, adapter: Any
) -> None:
    file = file_of(adapter(1), tmp_path)
    first = put(admin, made["id"], told(file, "w1"), file)
    assert first.status_code == 200, first.text
    assert (first.json()["counted"], first.json()["warning"]) == (True, None)
    again = put(admin, made["id"], told(file, "w1"), file)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    assert len(admin.get(f"/federations/{made['id']}/updates").json()["items"]) == 1


def test_a_file_that_was_sent_again_after_its_update_was_taken_is_not_held(
    admin: httpx.Client, made: dict[str, Any], tmp_path: Path
) -> None:
    file = file_of(arrays(1), tmp_path)
    update, where = told(file, "w1"), f"/federations/{made['id']}"
    first = put(admin, made["id"], update, file)

    def send(offset: int) -> httpx.Response:
        headers = {"Upload-Offset": str(offset), "Upload-Length": str(len(file))}
        return admin.put(f"{where}/blobs/{update['sha256']}", content=file[offset:], headers=headers)

    assert [send(0).status_code, send(len(file)).status_code] == [201, 201]
    assert admin.post(f"{where}/updates", json=update).json()["id"] == first.json()["id"]
    gone = send(len(file))
    assert (gone.status_code, gone.json()["cursor"]) == (409, 0)


@pytest.mark.parametrize("adapter", [arrays, large])
def test_a_file_that_is_not_the_announced_one_is_refused_and_nothing_of_it_stays(
    running: Running, admin: httpx.Client, made: dict[str, Any], tmp_path: Path, adapter: Any
) -> None:
    file = file_of(adapter(1), tmp_path)
    reply = put(admin, made["id"], told(file, "w1"), file[:-1] + b"x")
    assert (reply.status_code, "digest" in reply.json()["detail"]) == (422, True)
    assert list((running.core.blobs.root / "uploads").iterdir()) == []
    assert put(admin, made["id"], told(file, "w1"), file).json()["counted"]


def test_what_cannot_take_part_is_refused_by_name_and_remembered(
    running: Running, admin: httpx.Client, made: dict[str, Any], tmp_path: Path
) -> None:
    broken = arrays(1)
    tensor = next(iter(broken))
    broken[tensor] = broken[tensor].copy()
    broken[tensor].flat[0] = np.nan
    file = file_of(arrays(1), tmp_path)
    bad = file.replace(arrays(1)[tensor].tobytes(), broken[tensor].tobytes())
    reply = put(admin, made["id"], told(bad, "w1"), bad)
    assert (reply.status_code, tensor in reply.json()["detail"]) == (422, True)
    (kept,) = admin.get(f"/federations/{made['id']}/updates").json()["items"]
    assert (kept["state"], tensor in kept["reason"]) == ("rejected", True)
    assert list((running.core.blobs.root / "uploads").iterdir()) == []
    assert not running.core.blobs.has(hashlib.sha256(bad).hexdigest())


def test_a_file_that_is_too_long_is_refused_before_it_is_read(admin: httpx.Client, tmp_path: Path) -> None:
    made = create(admin, max_update_bytes=MIB)
    file = file_of(large(1), tmp_path)
    assert put(admin, made["id"], told(file, "w1"), file).status_code == 413


def test_a_body_that_is_no_update_or_has_no_length_says_so(admin: httpx.Client, made: dict[str, Any]) -> None:
    where = f"/federations/{made['id']}/updates"
    assert admin.put(where, content=b"{}" + b"x" * 8, headers={"Update-Length": "2"}).status_code == 422
    assert admin.put(where, content=b"{}", headers={"Update-Length": "900"}).status_code == 422
    assert admin.put(where, content=b"{}").status_code == 422
    assert admin.put(where, content=iter([b"{}"]), headers={"Update-Length": "2"}).status_code == 422


def test_8_bits_with_their_update_count_as_the_floats_that_they_stand_for(
    admin: httpx.Client, made: dict[str, Any], tmp_path: Path
) -> None:
    write_int8(tmp_path / "packed", arrays(1), {})
    packed = (tmp_path / "packed").read_bytes()
    reply = put(admin, made["id"], told(packed, "w1", upload_dtype="int8"), packed)
    assert reply.status_code == 200, reply.text
    assert reply.json()["counted"]
    again = put(admin, made["id"], told(packed, "w1", upload_dtype="int8"), packed)
    assert again.json()["id"] == reply.json()["id"]


def test_what_a_broken_request_has_brought_is_not_sent_again(
    running: Running, admin: httpx.Client, made: dict[str, Any], tmp_path: Path
) -> None:
    file = file_of(large(1), tmp_path)
    digest, head = hashlib.sha256(file).hexdigest(), json.dumps(told(file, "w1")).encode()
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        lines = (
            f"PUT /api/v1/federations/{made['id']}/updates HTTP/1.1", f"Host: {host}",
            f"Authorization: Bearer {made['token']}", f"Update-Length: {len(head)}",
            f"Content-Length: {len(head) + len(file)}", "", "",
        )  # fmt: skip
        raw.sendall("\r\n".join(lines).encode() + head + file[:-1000])
        until(lambda: running.core.blobs.partial_size(digest) > MIB)
    lock = running.core.blobs.root / "uploads" / f"{digest}.lock"
    until(lambda: not lock.exists())
    here, where = running.core.blobs.partial_size(digest), f"/federations/{made['id']}"
    assert MIB < here < len(file)
    rest = {"Upload-Offset": str(here), "Upload-Length": str(len(file))}
    assert admin.put(f"{where}/blobs/{digest}", content=file[here:], headers=rest).status_code == 201
    assert admin.post(f"{where}/updates", json=told(file, "w1")).json()["counted"]


def test_a_second_try_goes_over_what_the_first_has_left(
    running: Running, admin: httpx.Client, made: dict[str, Any], tmp_path: Path
) -> None:
    file = file_of(large(1), tmp_path)
    digest, some = hashlib.sha256(file).hexdigest(), 2 * MIB
    begun = {"Upload-Offset": "0", "Upload-Length": str(len(file))}
    reply = admin.put(f"/federations/{made['id']}/blobs/{digest}", content=file[:some], headers=begun)
    assert reply.status_code == 202
    assert put(admin, made["id"], told(file, "w1"), file).json()["counted"]
    assert running.core.blobs.size(digest) == len(file)


def test_a_hand_written_loop_sends_and_fetches_with_a_request_each(
    running: Running, made: dict[str, Any], tmp_path: Path
) -> None:
    with _client(running, made, "w1") as one, _client(running, made, "w2") as two:
        for number in (1, 2):
            for client, worth in ((one, 1.0), (two, 3.0)):
                adapter = {name: np.full_like(each, worth * number) for name, each in arrays(0).items()}
                taken = client.upload(adapter, step=number, num_examples=1, config=config())
                assert (taken.counted, taken.warning) == (True, None)
            fetched = [client.fetch(tmp_path / client.worker_id, after=number - 1, wait_s=60) for client in (one, two)]
            for each in fetched:
                assert each is not None
                assert (each.version, each.round, each.folder.name) == (number, number, f"version-{number}")
                found = federated_values(each.folder)
                assert all((values == 2.0 * number).all() for values in found.values())
                assert json.loads((each.folder / "adapter_config.json").read_text())["r"] == config()["r"]
            assert one.fetch(tmp_path / "none", after=number) is None
    assert not list(tmp_path.rglob(".newest-*"))


def federated_values(folder: Path) -> Arrays:
    with AdapterFile(folder / TENSORS) as file:
        return {name: file.whole(name) for name in file.tensors}


def test_an_update_whose_answer_was_lost_is_not_sent_again(
    running: Running, made: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of(arrays(1), tmp_path)
    with httpx.Client(base_url=f"{running.url}/api/v1", headers={"Authorization": f"Bearer {made['token']}"}) as raw:
        assert put(raw, made["id"], told(file, "w1", upload_dtype="fp32"), file).json()["counted"]

    def lost(federation: str, local: Any, update: UpdateCreate) -> Any:
        raise UnreachableError("The connection broke.")

    def again(*_: Any) -> Any:
        raise AssertionError("the file was there")

    monkeypatch.setattr(transfer, "together", lost)
    monkeypatch.setattr(transfer, "send", again)
    with _client(running, made, "w1") as client:
        assert client.upload(tmp_path / "saved", step=1, num_examples=5).counted


def test_a_request_that_breaks_is_gone_on_with_apart(
    running: Running, made: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_of(arrays(1), tmp_path)
    whole = transfer._reader
    breaks = [True]

    def broken(file: Any, offset: int) -> Any:
        def read() -> Any:
            yield file.path.read_bytes()[:100]
            raise httpx.WriteError("The connection broke.")

        return read if breaks and breaks.pop() else whole(file, offset)

    monkeypatch.setattr(transfer, "_reader", broken)
    with _client(running, made, "w1") as client:
        assert client.upload(tmp_path / "saved", step=1, num_examples=5).counted
    assert breaks == []


def test_many_who_wait_get_the_version_with_its_file(
    running: Running, admin: httpx.Client, made: dict[str, Any], tmp_path: Path
) -> None:
    where = f"/federations/{made['id']}/versions/newest/adapter"
    assert admin.get(where).status_code == 204
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(admin.get, where, params={"after": 0, "wait_s": 50}, timeout=60) for _ in range(4)]
        for worker, seed in (("w1", 1), ("w2", 2)):
            file = file_of(arrays(seed), tmp_path)
            assert put(admin, made["id"], told(file, worker), file).status_code == 200
        replies = [each.result() for each in waiting]
    view = admin.get(f"/federations/{made['id']}/versions/newest").json()
    for reply in replies:
        assert (reply.status_code, reply.headers["Version"], reply.headers["Round"]) == (200, "1", "1")
        assert hashlib.sha256(reply.content).hexdigest() == view["sha256"]
        assert reply.headers["ETag"] == f'"{view["sha256"]}"'
    same = admin.get(replies[0].headers["Content-Location"].removeprefix("/api/v1"))
    assert same.content == replies[0].content
    assert admin.get(where, params={"after": 1}).status_code == 204
    cut = admin.get(where, headers={"Range": "bytes=8-15", "If-Range": replies[0].headers["ETag"]})
    assert (cut.status_code, cut.content) == (206, replies[0].content[8:16])


def _client(running: Running, made: Mapping[str, Any], worker: str) -> FederatedClient:
    return FederatedClient(running.url, made["id"], worker, made["token"], patience_s=30)
