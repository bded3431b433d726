"""A delivery that failed is done again by hand, from what the server has."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.api.support import HandWorker, Running, submit
from tests.integration.client.conftest import Cli
from tests.integration.worker.receiver import Receiver, receiving
from tunefleet.client.attempt import AttemptClient

DOCUMENT = """apiVersion: tunefleet/v1
metadata: {{name: hello}}
spec:
  taskType: echo
  data: {{type: list, items: [hello]}}
  output: {{destination: {{type: http, url: "{url}/hook", headers: {{X-Key: of-the-document}}}}}}
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def test_fault_18_what_could_not_be_delivered_is_kept_and_sent_by_hand(
    running: Running,
    hand: HandWorker,
    cli: Cli,
    receiver: Receiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running.client(running.admin_key) as http:
        task_id = submit(http, DOCUMENT.format(url=receiver.url))
    token = hand.take(task_id)
    archive, report, trained = (tmp_path / name for name in ("final_lora.tar.gz", "out1.bin", "final_lora"))
    archive.write_bytes(os.urandom(100_000))
    report.write_bytes(b"a report")
    trained.mkdir()
    (trained / "adapter.bin").write_bytes(b"weights")
    with AttemptClient(running.url, token) as attempt:
        attempt.push_artifact(task_id, archive.name, "archive", archive)
        attempt.push_artifact(task_id, report.name, "report", report)
        attempt.push_artifact(task_id, trained.name, "adapter", trained)
    error = "The result could not be delivered: it answers 503."
    finish = {"token": token, "outcome": "failed", "reason": "delivery_failed", "error": error}
    finish["result"] = {"loss": 1.5}
    assert token in hand.exchange(finishes=[finish])["finished"]
    hand.holding.remove(token)
    with running.client(running.admin_key) as http:
        task = http.get(f"/tasks/{task_id}").json()
        link = http.get(f"/results/{task_id}/files").json()["files"]
        assert http.get(f"/results/{task_id}").json()["result"] == {"loss": 1.5}, "the server has everything"
    assert (task["status"], task["reason"], task["attempts"]) == ("failed", "delivery_failed", 1), "it is not run again"
    urls = {file["name"]: file["url"] for file in link}
    assert httpx.get(urls["final_lora.tar.gz"]).content == archive.read_bytes()

    sent = cli("artifacts", "deliver", task_id, "--json")
    assert sent.code == 0, sent.err
    assert sent.json == {"task_id": task_id, "url": f"{receiver.url}/hook", "files": ["final_lora.tar.gz", "out1.bin"]}
    upload, second, post = receiver.seen
    assert {upload.path, second.path} == {f"/hook/{task_id}/files"}
    assert b'filename="out1.bin"' in second.body
    assert b"a report" in second.body
    assert hashlib.sha256(archive.read_bytes()).digest() in {
        hashlib.sha256(upload.body[start : start + 100_000]).digest() for start in (upload.body.find(b"\r\n\r\n") + 4,)
    }
    assert json.loads(post.body)["result"] == {"loss": 1.5}
    assert (upload.headers["X-Key"], post.headers["X-Key"]) == ("of-the-document",) * 2
    to_other = ("artifacts", "deliver", task_id, "--to", f"{receiver.url}/other", "--header", "X-Other: ${secret:HOOK}")
    assert "HOOK" in cli(*to_other).err, "the secret is not on this machine"
    monkeypatch.setenv("TUNEFLEET_SECRET_HOOK", "s3cret")
    other = cli(*to_other)
    assert other.code == 0, other.err
    assert receiver.seen[-1].path == "/other"
    assert receiver.seen[-1].headers["X-Other"] == "s3cret"
    assert "X-Key" not in receiver.seen[-1].headers, "what is meant for one address is not sent to another"
    receiver.answers = [404]
    assert "404" in cli("artifacts", "deliver", task_id).err
