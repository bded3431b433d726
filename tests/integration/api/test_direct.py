"""A worker sends large files to a real S3 service itself: whole, cut and gone on with, refused, given up."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.api.support import HandWorker, Running, is_problem, submit, until
from tests.integration.s3.gateway import BUCKET, SECRET_KEY, Gateway
from tunefleet.artifacts import direct as parts_module
from tunefleet.client import direct as sending
from tunefleet.client.attempt import AttemptClient
from tunefleet.client.throttle import Throttle
from tunefleet.errors import MachineError, UnreachableError
from tunefleet.orchestrator.context import Clock
from tunefleet.orchestrator.storage import direct_uploads as service

pytestmark = [pytest.mark.proof, pytest.mark.timeout(180)]

PART = 5 << 20
"""The least that S3 takes."""
Serve = Callable[..., Running]
PUSH = """
import sys
from pathlib import Path
from tunefleet.client.attempt import AttemptClient
from tunefleet.client.throttle import Throttle

url, token, task_id, path, speed = sys.argv[1:]
with AttemptClient(url, token, throttle=Throttle(float(speed))) as client:
    client.push_artifact(task_id, "model", "model", Path(path))
"""


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "PART_BYTES", PART)


@pytest.fixture(scope="module")
def serve(
    start: Callable[..., Running], s3_server: Gateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serve]:
    """Start servers that keep their files in the bucket, each at a place of its own."""
    begun: list[Running] = []

    def serve(data: Path | None = None, **settings: Any) -> Running:
        folder = data or tmp_path_factory.mktemp("data")
        made = start(
            folder,
            artifacts=f"s3://{BUCKET}/{folder.name}",
            s3_endpoint=s3_server.endpoint,
            s3_access_key=s3_server.environment["AWS_ACCESS_KEY_ID"],
            s3_secret_key=SECRET_KEY,
            lost_after_s=600,
            direct_upload_bytes=1 << 20,
            **settings,
        )
        begun.append(made)
        return made

    yield serve
    for each in begun:
        end(each)


def end(running: Running) -> None:
    if running.thread.is_alive():
        running.stop()
        running.core.close()


@pytest.fixture(scope="module")
def running(serve: Serve) -> Running:
    return serve()


def held(running: Running, name: str = "by-hand") -> tuple[str, str]:
    """Return a task that a worker runs, and the token of its attempt."""
    with running.client(running.admin_key) as admin, running.client(running.worker_key) as client:
        task_id = submit(admin)
        hand = HandWorker(client, name)
        hand.register()
        return task_id, hand.take(task_id)


def made(folder: Path, size_bytes: int) -> tuple[Path, str]:
    path = folder / "weights.bin"
    path.write_bytes(os.urandom(size_bytes))
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def uploads(s3_server: Gateway, running: Running) -> list[dict[str, Any]]:
    """Return what is on its way into the bucket."""
    place = f"{running.core.settings.data_dir.name}/arriving/"
    found = s3_server.client.list_multipart_uploads(Bucket=BUCKET, Prefix=place).get("Uploads", [])
    left = s3_server.client.list_objects_v2(Bucket=BUCKET, Prefix=place).get("Contents", [])
    return [*found, *left]


def arrived(s3_server: Gateway, running: Running) -> list[int]:
    """Return the lengths of the parts that are at the store."""
    begun = uploads(s3_server, running)
    if not begun:
        return []
    listed = s3_server.client.list_parts(Bucket=BUCKET, Key=begun[0]["Key"], UploadId=begun[0]["UploadId"])
    return [part["Size"] for part in listed.get("Parts", ())]


def kept(running: Running, digest: str) -> str:
    with running.client(running.admin_key, follow_redirects=True) as admin:
        return hashlib.sha256(admin.get(f"/blobs/{digest}").raise_for_status().content).hexdigest()


def test_a_large_file_goes_straight_to_the_store_and_a_small_one_through_the_server(
    running: Running, s3_server: Gateway, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path, digest = made(folder, 3 * PART + 1000)
    (folder / "config.json").write_bytes(b"{}")
    task_id, token = held(running)
    with AttemptClient(running.url, token) as client:
        artifact = client.push_artifact(task_id, "model", "model", folder)
        assert client._direct.sent_bytes == path.stat().st_size
        client.push_artifact(task_id, "again", "model", folder)
        assert client._direct.sent_bytes == path.stat().st_size, "what is kept is not sent again"
    assert artifact.size_bytes == path.stat().st_size + 2
    assert kept(running, digest) == digest
    assert uploads(s3_server, running) == [], "nothing is left beside"
    assert list(running.core.blobs.uploads.iterdir()) == [], "not a byte lay on the server's disk"


def test_a_sender_and_a_server_that_are_killed_send_only_what_lacks(
    serve: Serve, s3_server: Gateway, tmp_path: Path
) -> None:
    running = serve()
    path, digest = made(tmp_path, 6 * PART)
    task_id, token = held(running)
    # A part a second: a busy machine sees the first one long before the last has gone.
    arguments = [running.url, token, task_id, str(path), str(PART)]
    process = subprocess.Popen([sys.executable, "-c", PUSH, *arguments])
    until(lambda: len(arrived(s3_server, running)) >= 1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    end(running)
    there = sum(arrived(s3_server, running))
    assert PART <= there < path.stat().st_size
    again = serve(running.core.settings.data_dir)
    with AttemptClient(again.url, token) as client:
        client.push_artifact(task_id, "model", "model", path)
        assert client._direct.sent_bytes == path.stat().st_size - there
    assert kept(again, digest) == digest
    assert uploads(s3_server, again) == []


def plan(client: httpx.Client, digest: str, size_bytes: int) -> httpx.Response:
    return client.post(f"/blobs/{digest}/direct", json={"size_bytes": size_bytes})


def put_parts(client: httpx.Client, digest: str, upload: str, data: bytes) -> None:
    numbers = list(range(1, -(-len(data) // PART) + 1))
    answer = client.post(f"/blobs/{digest}/direct/{upload}/links", json={"parts": numbers})
    for link in answer.json()["links"]:
        body = data[(link["part"] - 1) * PART : link["part"] * PART]
        httpx.put(link["url"], content=body, headers=link["headers"], timeout=60).raise_for_status()


def test_what_has_another_digest_is_refused_and_nothing_of_it_is_kept(running: Running, s3_server: Gateway) -> None:
    wanted, other = os.urandom(PART + 10), os.urandom(PART + 10)
    digest = hashlib.sha256(wanted).hexdigest()
    _, token = held(running)
    with running.client(token) as client:
        upload = plan(client, digest, len(wanted)).json()["upload"]
        early = client.post(f"/blobs/{digest}/direct/{upload}/complete")
        assert "2 of 2 parts" in is_problem(early, 409, "conflict")["detail"]
        put_parts(client, digest, upload, other)
        is_problem(client.post(f"/blobs/{digest}/direct/{upload}/complete"), 422, "artifact_invalid")
        assert client.post("/blobs/missing", json={"blobs": [
            {"path": "a", "digest": digest, "size_bytes": len(wanted)}
        ]}).json()["missing"][0]["digest"] == digest  # fmt: skip
        is_problem(client.get(f"/blobs/{digest}"), 404, "not_found")
        is_problem(client.post(f"/blobs/{digest}/direct/{upload}/complete"), 404, "not_found")
        assert uploads(s3_server, running) == []
        upload = plan(client, digest, len(wanted)).json()["upload"]
        put_parts(client, digest, upload, wanted)
        done = client.post(f"/blobs/{digest}/direct/{upload}/complete")
        assert (done.status_code, done.json()) == (200, {"cursor": len(wanted)})
    assert kept(running, digest) == digest


def test_who_does_not_hold_the_attempt_gets_neither_links_nor_an_end(running: Running) -> None:
    data = os.urandom(PART + 10)
    digest = hashlib.sha256(data).hexdigest()
    _, mine = held(running, "mine")
    _, theirs = held(running, "theirs")
    with running.client(mine) as owner, running.client(theirs) as other, running.client(running.admin_key) as admin:
        upload = plan(owner, digest, len(data)).json()["upload"]
        where = f"/blobs/{digest}/direct/{upload}"
        for verb, body in (("links", {"parts": [1]}), ("complete", None), ("give-up", {"why": "spite"})):
            is_problem(other.post(f"{where}/{verb}", json=body), 404, "not_found")
            is_problem(admin.post(f"{where}/{verb}", json=body), 403, "forbidden")
        is_problem(plan(admin, digest, len(data)), 403, "forbidden")
        assert plan(other, digest, len(data)).json()["upload"] != upload, "it has a place of its own"
        is_problem(owner.post(f"{where}/links", json={"parts": [3]}), 404, "not_found")
        assert plan(owner, digest, len(data)).json()["upload"] == upload
    with running.client(running.worker_key) as client:
        hand = HandWorker(client, "mine", session="session-1", holding=[mine])
        hand.finish(mine)
    with running.client(mine) as owner:
        assert owner.post(f"{where}/links", json={"parts": [1]}).status_code in {401, 409}


def test_the_limit_refuses_before_a_byte_is_sent(serve: Serve, s3_server: Gateway, tmp_path: Path) -> None:
    running = serve(storage_limit_bytes=2 * PART)
    path, digest = made(tmp_path, 2 * PART + 1)
    task_id, token = held(running)
    with AttemptClient(running.url, token) as client:
        with pytest.raises(MachineError, match="Storage limit exceeded: 0 of 10,485,760 bytes used"):
            client.push_artifact(task_id, "model", "model", path)
        assert client._direct.sent_bytes == 0
    with running.client(token) as raw:
        assert plan(raw, digest, PART + 1).status_code == 200
        beside = is_problem(plan(raw, "0" * 64, PART), 507, "machine")
        assert "bytes of these are reserved for other uploads in progress" in beside["detail"]
    assert len(uploads(s3_server, running)) == 1
    assert not running.core.blobs.has(digest)


def test_a_link_that_has_run_out_is_renewed(running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LINK_S", 1)
    # The sender believes its links: what it hears from the store has to do.
    monkeypatch.setattr(sending, "_STALE_SHARE", 1000.0)
    store = running.core.blobs.direct
    assert store is not None
    signed: list[int] = []
    link = store.link
    monkeypatch.setattr(store, "link", lambda *a: signed.append(a[2]) or link(*a))
    path, digest = made(tmp_path, 5 * PART)
    task_id, token = held(running)
    with AttemptClient(running.url, token, throttle=Throttle(2.5 * PART)) as client:
        client.push_artifact(task_id, "model", "model", path)
    assert kept(running, digest) == digest
    assert signed.count(5) >= 2, "its turn came when the first link had run out"


def test_an_upload_that_the_store_has_lost_is_begun_anew(
    running: Running, s3_server: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = running.core.blobs.direct
    assert store is not None
    lost: list[str] = []
    link = store.link

    def lose(name: str, ref: str, *rest: int) -> parts_module.PartLink:
        signed = link(name, ref, *rest)
        if not lost:
            lost.append(name)
            store.discard(name, ref)
        return signed

    monkeypatch.setattr(store, "link", lose)
    path, digest = made(tmp_path, 2 * PART)
    task_id, token = held(running)
    with AttemptClient(running.url, token) as client:
        client.push_artifact(task_id, "model", "model", path)
    assert kept(running, digest) == digest
    assert lost[0] not in str(uploads(s3_server, running))


def test_half_an_upload_is_aborted_after_the_grace(
    running: Running, s3_server: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(2 * PART)
    digest = hashlib.sha256(data).hexdigest()
    _, token = held(running)
    with running.client(token) as client, running.client(running.admin_key) as admin:
        upload = plan(client, digest, len(data)).json()["upload"]
        put_parts(client, digest, upload, data[:PART])
        arriving = next(each for each in admin.get("/storage").json()["uses"] if each["kind"] == "arriving")
        assert arriving["size_bytes"] >= len(data)
        admin.post("/prune", json={"older_than_s": 1e9}).raise_for_status()
        assert upload in str(uploads(s3_server, running)), "somebody may still go on with it"
        monkeypatch.setattr(running.core, "clock", Clock(wall=lambda: time.time() + 3700))
        admin.post("/prune", json={"older_than_s": 1e9}).raise_for_status()
        assert upload not in str(uploads(s3_server, running))
        monkeypatch.undo()
        monkeypatch.setattr(parts_module, "PART_BYTES", PART)
        assert plan(client, digest, len(data)).json()["here"] == []


@pytest.mark.parametrize("wanted", ["auto", "on"])
def test_a_store_out_of_the_workers_reach_is_told_and_passed_by_only_where_that_is_allowed(
    serve: Serve, s3_server: Gateway, tmp_path: Path, free_port: Callable[[], int],
    caplog: pytest.LogCaptureFixture, wanted: str,
) -> None:  # fmt: skip
    caplog.set_level(logging.WARNING, logger="tunefleet.client")
    running = serve(s3_public_endpoint=f"http://127.0.0.1:{free_port()}", direct_uploads=wanted)
    path, digest = made(tmp_path, 2 * PART)
    task_id, token = held(running)
    with AttemptClient(running.url, token) as client:
        if wanted == "on":
            with pytest.raises(UnreachableError, match=r"Connection to the object store 127\.0\.0\.1"):
                client.push_artifact(task_id, "model", "model", path)
            assert not running.core.blobs.has(digest)
            return
        client.push_artifact(task_id, "model", "model", path)
        path.write_bytes(path.read_bytes()[::-1])
        client.push_artifact(task_id, "other", "model", path)
    assert running.core.blobs.size(digest) == path.stat().st_size
    assert uploads(s3_server, running) == []
    with running.client(running.admin_key) as admin:
        told = admin.get("/events", params={"task_id": task_id, "kinds": "task.message"}).json()
    assert [each["data"]["level"] for each in told] == ["warning"], "once"
    assert "Files pass through the server: Connection to the object store 127.0.0.1" in told[0]["data"]["message"]
    assert len([each for each in caplog.records if "Uploading through the server" in each.message]) == 1


def test_a_server_may_have_it_turned_off(serve: Serve, s3_server: Gateway, tmp_path: Path) -> None:
    running = serve(direct_uploads="off")
    path, digest = made(tmp_path, 2 * PART)
    task_id, token = held(running)
    with AttemptClient(running.url, token) as client:
        client.push_artifact(task_id, "model", "model", path)
        assert client._direct.sent_bytes == 0
    assert kept(running, digest) == digest
    with running.client(token) as raw:
        is_problem(plan(raw, digest, 2 * PART), 403, "forbidden")


def test_a_key_that_must_not_list_parts_is_found_out_before_a_byte_is_sent(
    serve: Serve, s3_server: Gateway, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running = serve()
    place = f"arn:aws:s3:::{BUCKET}/{running.core.settings.data_dir.name}/arriving/*"
    denied = {"Effect": "Deny", "Principal": "*", "Action": "s3:ListMultipartUploadParts", "Resource": place}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [denied]})
    path, digest = made(tmp_path, 2 * PART)
    task_id, token = held(running)
    s3_server.client.put_bucket_policy(Bucket=BUCKET, Policy=policy)
    try:
        with AttemptClient(running.url, token) as client:
            client.push_artifact(task_id, "model", "model", path)
            assert client._direct.sent_bytes == 0
    finally:
        s3_server.client.delete_bucket_policy(Bucket=BUCKET)
    assert kept(running, digest) == digest, "it has come through the server"
    assert uploads(s3_server, running) == []
    told = [each.getMessage() for each in caplog.records if "Files pass through the server" in each.getMessage()]
    assert len(told) == 1
    assert "AccessDenied" in told[0]
