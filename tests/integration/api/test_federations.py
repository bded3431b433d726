"""Our own routes of federations: files that resume, updates that count once, versions, going back, events."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.integration.api.federated import arrays, create, events_of, values
from tests.integration.api.support import Running, is_problem, until
from tests.unit.federation.adapters import Arrays, config
from tunefleet.federation import TENSORS, write_tensors
from tunefleet.federation.quantize import write_int8

TOKENIZER = b'{"version": "1.0"}'


class Sender:
    """A worker that sends files apart from updates.

    Args:
        running: The server.
        made: The federation.
        name: The worker's.
        folder: Where it writes adapters.
    """

    def __init__(self, running: Running, made: dict[str, Any], name: str, folder: Path) -> None:
        self.client = running.client(made["token"])
        self.made, self.name, self.folder = made, name, folder
        self.step = 0

    def put(self, data: bytes, *, offset: int = 0, total: int | None = None) -> httpx.Response:
        digest = hashlib.sha256(data).hexdigest()
        headers = {"Upload-Offset": str(offset), "Upload-Length": str(len(data) if total is None else total)}
        where = f"/federations/{self.made['id']}/blobs/{digest}"
        return self.client.put(where, content=data[offset:], headers=headers)

    def weights(self, adapter: Arrays, dtype: str = "F32") -> bytes:
        write_tensors(self.folder / TENSORS, adapter, dtype=dtype)
        return (self.folder / TENSORS).read_bytes()

    def body(self, data: bytes, **more: Any) -> dict[str, Any]:
        self.step += 100
        return {
            "worker": self.name,
            "step": self.step,
            "num_examples": 10,
            "sha256": hashlib.sha256(data).hexdigest(),
            "config": config(),
            **more,
        }

    def announce(self, body: dict[str, Any]) -> httpx.Response:
        return self.client.post(f"/federations/{self.made['id']}/updates", json=body)

    def send(self, adapter: Arrays, **more: Any) -> dict[str, Any]:
        data = self.weights(adapter)
        assert self.put(data).status_code == 201
        reply = self.announce(self.body(data, **more))
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer

    def get(self, where: str, **params: Any) -> httpx.Response:
        return self.client.get(f"/federations/{self.made['id']}{where}", params=params)

    def await_version(self, version: int) -> dict[str, Any]:
        reply = self.get("/versions/newest", after=version - 1, wait_s=60)
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer


@pytest.fixture
def made(admin: httpx.Client) -> dict[str, Any]:
    return create(admin, name="ours", min_workers=2)


@pytest.fixture
def pair(running: Running, made: dict[str, Any], tmp_path: Path) -> Iterator[tuple[Sender, Sender]]:
    one, two = Sender(running, made, "one", tmp_path), Sender(running, made, "two", tmp_path)
    yield one, two
    one.client.close()
    two.client.close()


def test_a_file_goes_on_where_it_stopped_and_is_not_sent_twice(pair: tuple[Sender, Sender]) -> None:
    one, _ = pair
    data = one.weights(arrays(1))
    digest = hashlib.sha256(data).hexdigest()
    where = f"/federations/{one.made['number']}/blobs/{digest}"
    part = one.client.put(where, content=data[:100], headers={"Upload-Offset": "0", "Upload-Length": str(len(data))})
    assert (part.status_code, part.json()) == (202, {"cursor": 100})
    assert is_problem(one.put(data), 409, "offset_conflict")["cursor"] == 100
    assert one.put(data, offset=100).status_code == 201
    again = one.put(data)
    assert (again.status_code, again.json()) == (201, {"cursor": len(data)})
    assert one.put(data, offset=7).status_code == 201, "whatever is sent: it is there"
    wrong = one.client.put(
        f"/federations/{one.made['id']}/blobs/{'0' * 64}",
        content=b"xyz",
        headers={"Upload-Offset": "0", "Upload-Length": "3"},
    )
    is_problem(wrong, 422, "artifact_invalid")


def test_an_update_counts_once_however_often_it_is_sent(pair: tuple[Sender, Sender]) -> None:
    one, two = pair
    data = one.weights(arrays(1))
    one.put(data)
    body = one.body(data, losses={"before": 2.0, "after": 1.5}, base_version=0)
    first = one.announce(body).json()
    assert first == {**first, "counted": True, "should_aggregate": False, "round": 1, "version": 0, "warning": None}
    assert one.announce(body).json() == first
    assert two.send(arrays(2))["should_aggregate"] is True
    version = one.await_version(1)
    assert (version["contributors"], version["round"], version["loss"]) == (["one", "two"], 1, 1.5)
    late = one.announce(body).json()
    assert (late["id"], late["version"]) == (first["id"], 1), "rounds later it is still the same update"
    listed = one.get("/updates").json()["items"]
    assert [(each["worker"], each["state"], each["weight"]) for each in listed] == [
        ("two", "aggregated", 0.5),
        ("one", "aggregated", 0.5),
    ]


def test_nobody_gets_at_a_file_by_its_digest(admin: httpx.Client, pair: tuple[Sender, Sender]) -> None:
    """Who knows the digest of another one's file neither has it in its version nor learns that it is there."""
    one, _ = pair
    secret = b'{"secret": true}'
    digest = hashlib.sha256(secret).hexdigest()
    length = {"Upload-Offset": "0", "Upload-Length": str(len(secret))}
    assert admin.put(f"/blobs/{digest}", content=secret, headers=length).status_code == 201
    data = one.weights(arrays(1))
    one.put(data)
    refused = is_problem(one.announce(one.body(data, tokenizer={"tokenizer.json": digest})), 422, "artifact_invalid")
    assert "was not uploaded" in refused["detail"]
    is_problem(one.announce(one.body(data, sha256=digest)), 422, "artifact_invalid")
    for name in ("../evil.json", "run.py"):
        body = one.body(data, tokenizer={name: hashlib.sha256(data).hexdigest()})
        is_problem(one.announce(body), 422, "input_invalid")


def test_the_tokenizer_is_sent_once_and_carried_into_every_version(pair: tuple[Sender, Sender]) -> None:
    one, two = pair
    assert one.put(TOKENIZER).status_code == 201
    named = {"tokenizer.json": hashlib.sha256(TOKENIZER).hexdigest()}
    one.send(arrays(1), tokenizer=named)
    two.send(arrays(2))
    one.await_version(1)
    one.send(arrays(3), tokenizer=named)
    two.send(arrays(4))
    one.await_version(2)
    for version in (1, 2):
        files = {file["path"]: file["sha256"] for file in one.get(f"/versions/{version}").json()["files"]}
        assert files["tokenizer.json"] == named["tokenizer.json"], version


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_an_upload_may_be_smaller(pair: tuple[Sender, Sender], tmp_path: Path, dtype: str) -> None:
    one, two = pair
    sent = {}
    for worker, seed in ((one, 1), (two, 2)):
        adapter = arrays(seed)
        if dtype == "int8":
            write_int8(tmp_path / "small.safetensors", adapter)
            data = (tmp_path / "small.safetensors").read_bytes()
        else:
            data = worker.weights(adapter, "BF16")
        assert worker.put(data).status_code == 201
        body = worker.body(data, upload_dtype=dtype)
        taken = worker.announce(body)
        assert taken.status_code == 200, taken.text
        assert worker.announce(body).json()["id"] == taken.json()["id"], "a repetition counts once"
        sent[worker.name] = hashlib.sha256(data).hexdigest()
    one.await_version(1)
    listed = {each["worker"]: each for each in one.get("/updates").json()["items"]}
    assert {name: each["sha256"] for name, each in listed.items()} == sent
    assert {each["upload_dtype"] for each in listed.values()} == {dtype}
    got = values(tmp_path, one.get("/versions/1/adapter").content)
    left, right = arrays(1), arrays(2)
    for name, value in got.items():
        np.testing.assert_allclose(value, (left[name] + right[name]) / 2, atol=0.03)


def test_a_file_that_lies_about_its_type_is_refused(pair: tuple[Sender, Sender]) -> None:
    one, _ = pair
    data = one.weights(arrays(1))
    one.put(data)
    is_problem(one.announce(one.body(data, upload_dtype="int8")), 422, "adapter_refused")
    one.announce(one.body(data, upload_dtype="bf16"))
    (counted,) = one.get("/updates", state="counted").json()["items"]
    assert counted["upload_dtype"] == "fp32", "what is shown is what came"


def test_versions_are_fetched_whole_and_in_ranges_and_gone_back_to(
    admin: httpx.Client, pair: tuple[Sender, Sender]
) -> None:
    one, two = pair
    assert one.get("/versions/newest").status_code == 204
    for seed in (1, 3):
        one.send(arrays(seed))
        two.send(arrays(seed + 1))
        one.await_version(1 + (seed > 1))
    whole = one.get("/versions/1/adapter")
    detail = one.get("/versions/1").json()
    assert hashlib.sha256(whole.content).hexdigest() == detail["sha256"]
    assert whole.headers["etag"] == f'"{detail["sha256"]}"'
    where = f"/federations/{one.made['id']}/versions/1/adapter"
    part = one.client.get(where, headers={"Range": "bytes=8-15"})
    assert (part.status_code, part.content) == (206, whole.content[8:16])
    assert one.client.head(where).headers["content-length"] == str(len(whole.content))
    assert one.get("/versions/1/config").json()["r"] == 2
    assert [each["worker"] for each in detail["contributions"]] == ["one", "two"]
    assert [each["version"] for each in one.get("/versions").json()["items"]] == [2, 1]
    is_problem(one.get("/versions/9"), 404, "not_found")
    is_problem(one.client.post(f"/federations/{one.made['id']}/rollback", json={"version": 1}), 403, "forbidden")
    back = admin.post(f"/federations/{one.made['id']}/rollback", json={"version": 1})
    assert (back.json()["version"], back.json()["equals"], back.json()["sha256"]) == (3, 1, detail["sha256"])
    assert one.await_version(3)["version"] == 3
    is_problem(admin.post(f"/federations/{one.made['id']}/rollback", json={"version": 3}), 409, "conflict")


def test_what_happens_can_be_followed_with_the_token(
    admin: httpx.Client, pair: tuple[Sender, Sender], made: dict[str, Any]
) -> None:
    one, two = pair
    heard: list[dict[str, Any]] = []
    names: list[str] = []
    opened = threading.Event()

    def listen() -> None:
        with one.client.stream("GET", f"/federations/{made['id']}/events", params={"after": 0}) as stream:
            text = ""
            opened.set()
            for piece in stream.iter_text():
                text += piece
                heard[:] = events_of(text)
                names[:] = [line[7:].strip() for line in text.splitlines() if line.startswith("event: ")]
                if any(each["kind"] == "federation.version" for each in heard):
                    return

    listening = threading.Thread(target=listen)
    listening.start()
    opened.wait(60)
    create(admin, name="another")
    one.send(arrays(1))
    two.send(arrays(2))
    listening.join(60)
    kinds = [each["kind"] for each in heard]
    assert kinds[0] == "federation.created"
    assert kinds.count("federation.update") == 2
    assert "federation.version" in names
    assert {each["data"]["federation"] for each in heard} == {made["id"]}
    is_problem(one.client.get(f"/federations/{create(admin)['id']}/events"), 403, "forbidden")


def test_a_worker_says_where_it_is_told_and_that_it_has_come(pair: tuple[Sender, Sender], made: dict[str, Any]) -> None:
    one, _ = pair
    where = f"/federations/{made['id']}/members/one"
    told = one.client.put(where, json={"callback_url": "https://lab.example.org/hook?key=hush"})
    assert told.status_code == 200, told.text
    assert told.json()["callback_url"] == "https://lab.example.org/…"
    assert one.client.put(where, json={}).json()["callback_url"] == "https://lab.example.org/…"
    assert one.client.put(where, json={"callback_url": None}).json()["callback_url"] is None
    is_problem(one.client.put(where, json={"callback_url": "gopher://x"}), 422, "input_invalid")
    assert [each["worker"] for each in one.get("").json()["member_list"]] == ["one"]


def test_a_federation_is_listed_paused_cancelled_and_removed(running: Running, admin: httpx.Client) -> None:
    spec = {"name": "held", "strategy": {"name": "median"}, "min_workers": 3}
    reply = admin.post("/federations", params={"start": "false"}, json=spec)
    made = reply.json()
    assert (made["status"], made["strategy"]) == ("queued", "median")
    assert made["token"].startswith(made["id"])
    assert made["callback_secret"].startswith("whsec_")
    assert made["callback_secret"] not in admin.get(f"/federations/{made['id']}").text
    listed = admin.get("/federations", params={"status": "queued"}).json()["items"]
    assert made["id"] in [each["id"] for each in listed]
    assert admin.post(f"/federations/{made['id']}/start").json()["status"] == "running"
    assert admin.post(f"/federations/{made['id']}/pause").json()["status"] == "paused"
    is_problem(admin.delete(f"/federations/{made['id']}"), 409, "conflict")
    assert admin.post(f"/federations/{made['id']}/cancel").json()["status"] == "cancelled"
    is_problem(admin.post(f"/federations/{made['id']}/start"), 409, "illegal_transition")
    with running.client(made["token"]) as worker:
        gone = worker.put(
            f"/federations/{made['id']}/blobs/{'0' * 64}",
            content=b"x",
            headers={"Upload-Offset": "0", "Upload-Length": "1"},
        )
        is_problem(gone, 410, "gone")
    assert admin.delete(f"/federations/{made['id']}").status_code == 204
    is_problem(admin.get(f"/federations/{made['id']}"), 404, "not_found")
    is_problem(admin.post("/federations", json={"min_workers": 0}), 422, "request_invalid")
    is_problem(admin.get("/federations", params={"stattus": "queued"}), 422, "input_invalid")


def test_files_larger_than_an_update_may_be_are_413(running: Running, admin: httpx.Client, tmp_path: Path) -> None:
    sender = Sender(running, create(admin, max_update_bytes=100), "one", tmp_path)
    is_problem(sender.put(bytes(101)), 413, "too_large")
    sender.client.close()


def test_nothing_of_an_update_stays_behind(running: Running, pair: tuple[Sender, Sender]) -> None:
    one, _ = pair
    one.send(arrays(1))
    data = one.weights(arrays(2))
    one.put(data)
    refused = is_problem(one.announce(one.body(data, config={"peft_type": "IA3"})), 422, "adapter_refused")
    assert "IA3" in refused["detail"]
    until(lambda: not list((running.core.blobs.root / "landing").iterdir()))
    assert one.get("/rounds").json()["items"][0]["uploaded"] == ["one"]
