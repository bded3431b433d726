"""Chunks of a federation's data: one worker at a time has each, a silent one loses it, and what is done stays done."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.api.federated import arrays, create, workers
from tests.integration.api.support import Running, is_problem
from tunefleet.client import Client
from tunefleet.orchestrator.context import Clock
from tunefleet.orchestrator.federation import data_chunks


@pytest.fixture
def push(running: Running, tmp_path: Path) -> Callable[..., str]:
    def push(name: str, text: str | bytes) -> str:
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        with Client(running.url, running.admin_key) as client:
            return client.data.push(file, name=f"{tmp_path.name}-{name}").name

    return push


def rows(count: int) -> str:
    return "".join(json.dumps({"row": number}) + "\n" for number in range(count))


def claim(running: Running, made: dict[str, Any], worker: str | int, **more: Any) -> httpx.Response:
    with running.client(made["token"]) as client:
        where = f"{running.url}/api/training/jobs/{made['number']}/claim-chunk"
        return client.post(where, json={"workerId": worker, **more})


def test_chunks_are_dealt_out_once_each_and_hold_all_of_the_data(
    running: Running, admin: httpx.Client, push: Callable[..., str]
) -> None:
    made = create(admin, dataset=push("train.jsonl", rows(25)), chunk_size=10)
    found: list[dict[str, Any]] = []

    def work(name: str) -> None:
        reply = claim(running, made, name)
        if reply.status_code == 200:
            found.append(reply.json())

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(each["chunkIndex"] for each in found) == [0, 1, 2]
    seen = []
    for each in sorted(found, key=lambda each: each["chunkIndex"]):
        assert each["chunkPath"] == f"/api/datasets/chunks/{made['number']}/{each['chunkIndex']}/download"
        data = httpx.get(each["downloadUrl"])
        assert data.status_code == 200
        assert len(data.text.splitlines()) == each["rows"]
        seen += [json.loads(line)["row"] for line in data.text.splitlines()]
        with running.client(made["token"]) as client:
            assert client.get(running.url + each["chunkPath"]).content == data.content
    assert seen == list(range(25))
    refused = claim(running, made, "late")
    assert refused.status_code == 404
    assert "no free chunk left" in refused.json()["message"]
    assert httpx.get(running.url + found[0]["chunkPath"]).status_code == 401
    forged = found[0]["downloadUrl"].replace(found[0]["chunkPath"], found[1]["chunkPath"])
    assert httpx.get(forged).status_code == 403


def test_a_worker_keeps_its_chunk_until_it_is_done_or_silent(
    running: Running, admin: httpx.Client, push: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = create(admin, dataset=push("train.jsonl", rows(20)), chunk_size=10, min_workers=50)
    assert claim(running, made, 1).json()["chunkIndex"] == 0
    assert claim(running, made, 1).json()["chunkIndex"] == 0, "a restarted worker goes on with its own"
    assert claim(running, made, 2).json()["chunkIndex"] == 1
    assert claim(running, made, 3).status_code == 404
    now = running.core.clock.wall()
    with monkeypatch.context() as later:
        later.setattr(running.core, "clock", Clock(lambda: now + 0.8 * data_chunks.LEASE_S))
        with workers(running, made, tmp_path, "1") as (one,):
            one.upload(arrays(1))
        later.setattr(running.core, "clock", Clock(lambda: now + 1.2 * data_chunks.LEASE_S))
        taken = claim(running, made, 3).json()
        assert taken["chunkIndex"] == 1, "the first worker has uploaded since, the second was silent"
        lost = claim(running, made, 2, completedChunk=1)
        assert (lost.status_code, lost.json()["code"]) == (409, "CONFLICT")
        assert claim(running, made, 1, completedChunk=0).status_code == 404, "it is done, and there is no other"
        assert claim(running, made, 1, completed_chunk=0).status_code == 404
        with running.client(made["token"]) as client:
            progress = client.get(f"{running.url}/api/training/jobs/{made['id']}/progress").json()
        assert (progress["stats"]["completedChunks"], progress["stats"]["totalChunks"]) == (1, 2)


def test_a_job_of_the_guides_is_cut_into_as_many_chunks_as_it_says(running: Running, push: Callable[..., str]) -> None:
    with running.client(running.admin_key) as client:
        body = {"name": "x", "dataset": push("data.csv", 'q,a\n1,2\n"3,5",4\n5,6\n'), "totalChunks": 2}
        reply = client.post(f"{running.url}/api/training/jobs", json=body)
        assert reply.status_code == 201, reply.text
        job = reply.json()["job"]
        made = {"token": reply.json()["token"], "number": job["id"]}
        assert is_idle(claim(running, made, 1)), "it is not started"
        assert client.post(f"{running.url}/api/training/jobs/{job['id']}/start").status_code == 200
        first = claim(running, made, 1).json()
        assert httpx.get(first["downloadUrl"]).text == '{"q":"1","a":"2"}\n{"q":"3,5","a":"4"}\n'
        assert claim(running, made, 2).json()["rows"] == 1


def is_idle(reply: httpx.Response) -> bool:
    return reply.status_code == 409 and "start" in reply.json()["message"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"a": 1}\nnot json\n', "Line 2 of a.jsonl is not a JSON object"),
        ("a.jsonl", "[1, 2]\n", "Line 1 of a.jsonl is not a JSON object"),
        ("a.jsonl", "\n\n", "has no rows"),
        ("a.parquet", "PAR1", "a.parquet of "),
        ("a.jsonl.gz", "x", "cannot be split into chunks (supported: .jsonl, .ndjson, .csv, .tsv)"),
        ("a.json", '[{"a": 1}]', "no file that can be split"),
        ("a.csv", "q,a\n1\n", "not have as many fields"),
        ("a.csv", b"q\n\xff\n", "is not UTF-8"),
    ],
)
def test_data_that_cannot_be_cut_makes_no_federation(
    admin: httpx.Client, push: Callable[..., str], name: str, text: str | bytes, message: str
) -> None:
    before = admin.get("/federations").json()["items"]
    refused = is_problem(admin.post("/federations", json={"dataset": push(name, text)}), 422, "data_invalid")
    assert message in refused["detail"]
    is_problem(admin.post("/federations", json={"dataset": "nowhere"}), 404, "not_found")
    assert admin.get("/federations").json()["items"] == before


def test_rows_that_would_be_left_out_are_named(running: Running, admin: httpx.Client, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "README.md").write_text("# Data")
    (folder / "dataset_info.json").write_text("{}")
    (folder / "a.jsonl").write_text(rows(2))
    with Client(running.url, running.admin_key) as client:
        assert create(admin, dataset=client.data.push(folder).name)["status"] == "running"
        (folder / "b.parquet").write_text("PAR1")
        name = client.data.push(folder, name="mixed-2").name
    refused = is_problem(admin.post("/federations", json={"dataset": name}), 422, "data_invalid")
    assert refused["detail"].startswith("b.parquet of mixed-2 cannot be split into chunks")
    assert "JSON Lines" in refused["hint"]
