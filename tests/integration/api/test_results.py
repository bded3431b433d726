"""Results and files of tasks over HTTP: streamed in and out, links, who may what."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests.integration.api.support import HandWorker, Running, is_problem, submit
from tunefleet.artifacts import Intake
from tunefleet.client.attempt import AttemptClient
from tunefleet.client.throttle import Throttle, Ticks
from tunefleet.errors import ArtifactError

MIB = 1 << 20


@pytest.fixture
def task(admin: httpx.Client, hand: HandWorker) -> Iterator[tuple[str, str]]:
    """A task that runs on the worker of the module, and its token."""
    task_id = submit(admin)
    token = hand.take(task_id)
    yield task_id, token
    if token in hand.holding:
        hand.finish(token)


def send(client: httpx.Client, task_id: str, name: str, data: bytes, field: str = "file") -> httpx.Response:
    return client.post(f"/results/{task_id}/files", files={field: (name, data, "application/gzip")})


def test_a_file_goes_in_and_out_by_name_with_ranges_and_a_digest(
    running: Running, admin: httpx.Client, task: tuple[str, str]
) -> None:
    task_id, token = task
    data = os.urandom(3 * MIB + 17)
    with running.client(token) as attempt:
        stored = send(attempt, task_id, "final_lora.tar.gz", data)
    assert stored.status_code == 200, stored.text
    told = stored.json()
    assert told["ok"] is True
    assert told["path"] == f"/api/v1/results/{task_id}/files/final_lora.tar.gz"
    assert (told["size_bytes"], told["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    where = f"/results/{task_id}/files/final_lora.tar.gz"
    whole = admin.get(where)
    assert whole.content == data
    assert whole.headers["etag"] == f'"{told["sha256"]}"'
    part = admin.get(where, headers={"Range": f"bytes={MIB}-{MIB + 9}"})
    assert (part.status_code, part.content) == (206, data[MIB : MIB + 10])
    assert admin.get(where, headers={"If-None-Match": whole.headers["etag"]}).status_code == 304
    assert admin.get(f"/results/{task_id}/files/artifacts/final_lora.tar.gz").status_code == 200
    listed = admin.get(f"/results/{task_id}/files").json()["files"]
    assert {"final_lora.tar.gz", "manifest.json"} == {file["name"] for file in listed}
    is_problem(admin.get(f"/results/{task_id}/files/other"), 404, "not_found")
    replaced = send(admin, task_id, "final_lora.tar.gz", b"newer")
    assert replaced.status_code == 200
    assert admin.get(where).content == b"newer"


def test_a_link_needs_no_key_until_its_file_is_another_one_or_its_time_is_over(
    running: Running, admin: httpx.Client, task: tuple[str, str]
) -> None:
    task_id, _ = task
    url = send(admin, task_id, "a b.bin", b"one").json()["url"]
    assert url.startswith(f"{running.url}/api/v1/results/{task_id}/files/a%20b.bin?expires=")
    plain = httpx.get(url)
    assert (plain.status_code, plain.content) == (200, b"one")
    assert httpx.get(url, headers={"Authorization": "Bearer of-another-server"}).content == b"one"
    parts = urlsplit(url)
    assert httpx.get(url.split("?")[0]).status_code == 401
    for query in (
        parts.query[:-1] + ("0" if parts.query[-1] != "0" else "1"),
        parts.query.replace("expires=", "expires=9"),
        "expires=1&signature=" + parts.query.partition("signature=")[2],
    ):
        is_problem(httpx.get(f"{url.split('?')[0]}?{query}"), 403, "forbidden")
    other = url.replace("a%20b.bin", "manifest.json")
    is_problem(httpx.get(other), 403, "forbidden")
    send(admin, task_id, "a b.bin", b"two")
    is_problem(httpx.get(url), 403, "forbidden")
    fresh = {file["name"]: file["url"] for file in admin.get(f"/results/{task_id}/files").json()["files"]}
    assert httpx.get(fresh["a b.bin"]).content == b"two"
    lasts_s = (
        int(dict(pair.split("=") for pair in urlsplit(fresh["a b.bin"]).query.split("&"))["expires"]) - time.time()
    )
    assert 6 * 86400 < lasts_s <= 7 * 86400


def test_only_the_tasks_attempt_its_owner_and_an_admin_may_bring_something(
    running: Running, admin: httpx.Client, hand: HandWorker, task: tuple[str, str], as_role: Callable[..., httpx.Client]
) -> None:
    task_id, token = task
    other_id = submit(admin)
    other_token = hand.take(other_id)
    envelope = {"task_id": task_id, "result": {"ok": True}}
    with running.client(other_token) as stranger:
        is_problem(send(stranger, task_id, "x", b"x"), 403, "forbidden")
        is_problem(stranger.post("/results", json=envelope), 403, "forbidden")
        is_problem(stranger.get(f"/results/{task_id}/files"), 403, "forbidden")
    for role in ("member", "viewer", "worker"):
        is_problem(send(as_role(role), task_id, "x", b"x"), 403, "forbidden")
        is_problem(as_role(role).post("/results", json=envelope), 403, "forbidden")
    with running.client() as nobody:
        is_problem(send(nobody, task_id, "x", b"x"), 401, "unauthenticated")
    hand.finish(other_token)
    with running.client(token) as mine:
        assert mine.post("/results", json=envelope).status_code == 200
    hand.finish(token)
    with running.client(token) as late:
        assert send(late, task_id, "x", b"x").status_code in {403, 409}


def test_a_result_is_stored_as_an_envelope_and_read_under_every_name(
    running: Running, admin: httpx.Client, hand: HandWorker, task: tuple[str, str]
) -> None:
    task_id, token = task
    is_problem(admin.get(f"/results/{task_id}"), 404, "not_found")
    with running.client(token) as attempt:
        url = send(attempt, task_id, "rows.jsonl", b"{}\n").json()["url"]
        early = {"task_id": task_id, "result": {"jsonl_export": {"url": url}}, "metadata": {"a": 1}}
        assert attempt.post("/results", json=early).json() == {
            "ok": True,
            "path": f"/api/v1/results/{task_id}",
        } | dict.fromkeys(("name", "size_bytes", "sha256", "url"))
    found = admin.get(f"/results/{task_id}").json()
    assert (found["task_id"], found["worker_id"], found["metadata"]) == (task_id, hand.worker_id, {"a": 1})
    assert httpx.get(found["result"]["jsonl_export"]["url"]).content == b"{}\n"
    hand.finish(token)
    envelope = admin.get(f"/results/{task_id}").json()
    assert envelope["result"] == {"ok": True}
    for name in ("responses.json", "results.json"):
        assert admin.get(f"/results/{task_id}/files/{name}").json()["result"] == {"ok": True}
    manifest = admin.get(f"/results/{task_id}/files/manifest.json").json()
    entries = {entry["name"]: entry for entry in manifest["entries"]}
    assert entries["responses.json"]["status"] == "present"
    assert entries["rows.jsonl"]["sha256"] == hashlib.sha256(b"{}\n").hexdigest()
    again = {"task_id": task_id, "result": {"ok": False}}
    is_problem(admin.post("/results", json=again), 409, "conflict")
    assert admin.post("/results", json={**again, "result": {"ok": True}}).status_code == 200, "a repeat changes nothing"


@pytest.mark.parametrize(
    "name", ["../up", "a/b", "", ".hidden", "..", "a\\b"], ids=["up", "path", "empty", "dot", "dots", "back"]
)
def test_a_name_that_is_no_plain_name_is_400(admin: httpx.Client, task: tuple[str, str], name: str) -> None:
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="' + name.encode() + b'"\r\n\r\nx\r\n--b--\r\n'
    )
    reply = admin.post(
        f"/results/{task[0]}/files", content=body, headers={"Content-Type": "multipart/form-data; boundary=b"}
    )
    is_problem(reply, 400, "request_invalid")


@pytest.mark.parametrize("name", ["responses.json", "results.json", "manifest.json"])
def test_a_name_of_the_servers_own_is_400_and_what_it_stands_for_stays(
    running: Running, admin: httpx.Client, hand: HandWorker, task: tuple[str, str], name: str
) -> None:
    """Taken, it would hide the manifest, or be hidden by the result for ever."""
    task_id, token = task
    for ended in (False, True):
        refused = is_problem(send(admin, task_id, name, b"mine"), 400, "request_invalid")
        assert name in refused["detail"]
        assert "another name" in refused["detail"]
        if not ended:
            hand.finish(token)
    found = admin.get(f"/results/{task_id}/files/{name}").json()
    assert found["task_id"] == task_id
    assert not list(running.core.blobs.uploads.glob("intake-*"))


def test_head_says_what_get_would_send(running: Running, admin: httpx.Client, task: tuple[str, str]) -> None:
    task_id, _ = task
    data = os.urandom(5000)
    url = send(admin, task_id, "model.bin", data).json()["url"]
    artifact = admin.get(f"/tasks/{task_id}/artifacts").json()["items"][0]["id"]
    for head, get in (
        (httpx.head(url), httpx.get(url)),
        *(
            (admin.head(where), admin.get(where))
            for where in (
                f"/results/{task_id}/files/model.bin",
                f"/results/{task_id}/files/manifest.json",
                f"/artifacts/{artifact}/files/model.bin",
            )
        ),
    ):
        assert (head.status_code, head.content) == (200, b"")
        for name in ("content-length", "content-type", "etag", "accept-ranges"):
            assert head.headers[name] == get.headers[name]
    assert httpx.head(url.split("?")[0]).status_code == 401
    assert admin.head(f"/results/{task_id}/files/other").status_code == 404


def test_what_the_server_makes_is_sent_in_ranges_too(admin: httpx.Client, task: tuple[str, str]) -> None:
    task_id, _ = task
    admin.post("/results", json={"task_id": task_id, "result": {"text": "x" * 500}})
    where = f"/results/{task_id}/files/responses.json"
    whole = admin.get(where)
    size, etag = len(whole.content), whole.headers["etag"]
    for asked, start, end in (
        ("bytes=5-9", 5, 10),
        ("bytes=100-", 100, size),
        ("bytes=-7", size - 7, size),
        (f"bytes=0-{size + 99}", 0, size),
    ):
        part = admin.get(where, headers={"Range": asked, "If-Range": etag})
        assert (part.status_code, part.content) == (206, whole.content[start:end])
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"
        assert part.headers["etag"] == etag
    for headers in ({"Range": "bytes=5-9", "If-Range": '"older"'}, {"Range": "lines=1-2"}, {"Range": "bytes=-"}):
        assert admin.get(where, headers=headers).content == whole.content
    beyond = admin.get(where, headers={"Range": f"bytes={size}-"})
    is_problem(beyond, 416, "range_invalid")
    assert beyond.headers["content-range"] == f"bytes */{size}"
    assert admin.get(where, headers={"If-None-Match": etag}).status_code == 304


def test_what_cannot_be_read_is_400_and_leaves_nothing(
    running: Running, admin: httpx.Client, task: tuple[str, str]
) -> None:
    task_id, _ = task
    is_problem(admin.post("/results", json={"task_id": " ", "result": {}}), 400, "request_invalid")
    is_problem(send(admin, task_id, "x", b"x", field="other"), 400, "request_invalid")
    form = {"Content-Type": "multipart/form-data; boundary=b"}
    cut = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nhalf of'
    is_problem(admin.post(f"/results/{task_id}/files", content=cut, headers=form), 400, "request_invalid")
    is_problem(admin.post(f"/results/{task_id}/files", content=b"{}"), 400, "request_invalid")
    is_problem(send(admin, "task-0123456789ab", "x", b"x"), 404, "not_found")
    assert not list(running.core.blobs.uploads.glob("intake-*"))


def test_fault_20_an_upload_costs_no_memory_and_does_not_stop_the_server(
    running: Running, admin: httpx.Client, task: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Structural: what is written at once is small, whatever the size, and none of it in the event loop's thread."""
    task_id, _ = task
    pieces: list[int] = []
    threads: set[str] = set()
    write = Intake.write

    def watched(self: Intake, data: Any) -> None:
        pieces.append(len(data))
        threads.add(threading.current_thread().name)
        write(self, data)

    monkeypatch.setattr(Intake, "write", watched)
    before = psutil.Process().memory_info().rss
    size = 96 * MIB
    block = os.urandom(MIB)

    def body() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="big"\r\n\r\n'
        for _ in range(size // MIB):
            yield block
        yield b"\r\n--b--\r\n"

    reply = admin.post(
        f"/results/{task_id}/files", content=body(), headers={"Content-Type": "multipart/form-data; boundary=b"}
    )
    assert reply.json()["size_bytes"] == size == sum(pieces)
    assert max(pieces) <= 4 * MIB
    assert running.thread.name not in threads
    assert psutil.Process().memory_info().rss - before < size // 2


TWO = """apiVersion: tunefleet/v1
metadata: {name: two}
spec:
  taskType: echo
  stages:
    - {name: first, spec: {data: {type: list, items: [a]}}}
    - {name: second, spec: {data: {type: list, items: [b]}}}
"""


def test_a_worker_may_read_what_its_task_reads_and_nothing_else(
    running: Running, admin: httpx.Client, hand: HandWorker
) -> None:
    first, second = (task["id"] for task in admin.post("/workflows", json={"document": TWO}).json()["tasks"])
    token = hand.take(first)
    with running.client(token) as attempt:
        assert send(attempt, first, "rows.jsonl", b"{}").status_code == 200
    hand.finish(token)
    named = submit(admin)
    document = TWO.replace("[a]", f"[{named}]")
    naming = admin.post("/workflows", json={"document": document}).json()["tasks"][0]["id"]
    tokens = {second: hand.take(second), naming: hand.take(naming), named: hand.take(named)}
    with running.client(tokens[second]) as attempt:
        assert attempt.get(f"/results/{first}").json()["result"] == {"ok": True}
        assert attempt.get(f"/results/{first}/files/rows.jsonl").content == b"{}"
        is_problem(attempt.get(f"/results/{named}/files"), 403, "forbidden")
        is_problem(send(attempt, first, "rows.jsonl", b"x"), 403, "forbidden")
    with running.client(tokens[naming]) as attempt:
        assert attempt.get(f"/results/{named}/files").status_code == 200, "its document names it"
        is_problem(attempt.get(f"/results/{first}/files"), 403, "forbidden")
    for held in tokens.values():
        hand.finish(held)


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_workers_bandwidth_holds_archives_and_downloads_and_is_shown(
    running: Running, admin: httpx.Client, task: tuple[str, str], tmp_path: Path
) -> None:
    """Structural: how long a transfer with a real server would have waited; 10 MB at 1 MB/s take 9 to 11 s."""
    task_id, token = task
    archive = tmp_path / "final_model.tar.gz"
    archive.write_bytes(os.urandom(10_000_000))
    clock = Clock()
    throttle = Throttle(1_000_000, ticks=Ticks(lambda: clock.now, clock.sleep))
    with AttemptClient(running.url, token, throttle=throttle) as attempt:
        attempt.push_artifact(task_id, archive.name, "archive", archive)
        assert 9.0 <= clock.now <= 11.0
        clock.now = 0.0
        throttle = Throttle(1_000_000, ticks=Ticks(lambda: clock.now, clock.sleep))
    with AttemptClient(running.url, token, throttle=throttle) as attempt:
        (file,) = (file for file in attempt.result_files(task_id) if file.name == archive.name)
        attempt.fetch_result_file(task_id, file, tmp_path / "again")
        assert 9.0 <= clock.now <= 11.0
    assert (tmp_path / "again").read_bytes() == archive.read_bytes()
    shown = admin.get("/workers/by-hand").json()
    assert "bandwidth_bytes_per_s" in shown["capabilities"]


def test_fault_21_a_fetch_that_was_cut_goes_on_and_what_is_damaged_is_refused(
    running: Running, admin: httpx.Client, task: tuple[str, str], tmp_path: Path
) -> None:
    task_id, token = task
    data = os.urandom(2 * MIB)
    send(admin, task_id, "model.bin", data)
    with AttemptClient(running.url, token) as attempt:
        (file,) = (file for file in attempt.result_files(task_id) if file.name == "model.bin")
        part = tmp_path / f".model.bin.{file.sha256[:12]}.part"
        part.write_bytes(data[:MIB])
        attempt.fetch_result_file(task_id, file, tmp_path / "model.bin")
        assert (tmp_path / "model.bin").read_bytes() == data
        part.write_bytes(b"x" * MIB)
        (tmp_path / "model.bin").unlink()
        with pytest.raises(ArtifactError, match="corrupted in transfer"):
            attempt.fetch_result_file(task_id, file, tmp_path / "model.bin")
        assert not (tmp_path / "model.bin").exists()
