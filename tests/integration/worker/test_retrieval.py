"""Vectors, a database of them, and searching it: on two real workers, with a model that a script makes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.fakes.qdrant import QdrantDouble
from tests.making.sentence_model import DIMENSION, make
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.schemas.api import TaskDetail
from tunefleet.schemas.job_folder import JobFolder, JobProcess


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Distance, VectorParams
    pytest.importorskip("qdrant_client")
    pytest.importorskip("sentence_transformers")

    from qdrant_client.models import Distance, VectorParams


pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(400)]

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "workflows"
BUILTIN = "builtin:gsm8k-llama-2m"
KEY = "a-key-of-qdrant"
PATIENCE_S = 240.0
NOTES = {
    "apples": "Anna has seven red apples and gives three of them to her brother.",
    "train": "The night train leaves the station at eleven and arrives at dawn.",
    "bread": "The bakery sells fresh bread and warm rolls every morning.",
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    environment = {
        "TUNEFLEET_URL_ALLOW": "127.0.0.1",
        "TUNEFLEET_SECRET_QDRANT_KEY": KEY,
        "ENABLE_ELASTIC_SCALING": "false",
        "HF_HUB_OFFLINE": "1",
    }
    data = tmp_path_factory.mktemp("fleet")
    with LocalFleet(data, port=free_port(), workers=2, environment=environment, save_client=False) as made:
        made.await_workers(60)
        yield made


@pytest.fixture
def client(fleet: LocalFleet) -> Iterator[Client]:
    with Client(fleet.url, fleet.key, patience_s=30) as client:
        yield client


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("model") / "words")


def submit(client: Client, spec: dict[str, Any]) -> str:
    text = yaml.safe_dump({"apiVersion": "tunefleet/v1", "metadata": {"name": spec["taskType"]}, "spec": spec})
    return client.submit(text).workflow.tasks[0].id


def ended(client: Client, task_id: str) -> TaskDetail:
    return client.tasks.wait(task_id, timeout_s=PATIENCE_S)


def result(task: TaskDetail) -> dict[str, Any]:
    assert task.status == "completed", task.error
    assert task.result is not None
    found: dict[str, Any] = task.result["result"]
    return found


def listed(texts: dict[str, str]) -> dict[str, Any]:
    return {"type": "list", "items": list(texts.values()), "metadata": [{"source": name} for name in texts]}


def test_vectors_come_in_a_file_and_a_killed_run_makes_none_of_them_twice(
    client: Client, fleet: LocalFleet, model: Path, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    texts = [f"note {number} of many" for number in range(400)] + list(NOTES.values())
    spec = {
        "taskType": "embedding",
        "model": {"source": {"identifier": str(model)}},
        "embedding": {"batch_size": 1},
        "data": {"type": "list", "items": texts},
        "retry": {"backoff_s": 0},
    }
    task_id = submit(client, spec)
    killed_at = kill_when_some_are_kept(fleet, task_id)
    task = ended(client, task_id)
    found = result(task)
    assert task.attempts == 2
    assert 0 < killed_at <= len(texts) - found["usage"]["computed"]
    assert found["vectors"] | {"sha256": "", "size_bytes": 0} == {
        "path": "vectors.parquet", "format": "parquet", "column": "vector", "dtype": "float32",
        "dimension": DIMENSION, "count": len(texts), "sha256": "", "size_bytes": 0,
    }  # fmt: skip
    assert found["items"][-1] == {"index": len(texts) - 1, "dimension": DIMENSION}
    artifact = next(each for each in client.artifacts.list(task_id=task_id).items if each.name == "vectors.parquet")
    table = pq.read_table(client.artifacts.fetch(artifact.id, tmp_path))
    assert table["text"].to_pylist() == texts
    rows = table["vector"].to_pylist()
    assert all(abs(sum(number * number for number in row) - 1) < 1e-4 for row in rows)


def kill_when_some_are_kept(fleet: LocalFleet, task_id: str) -> int:
    """Kill the job's process once vectors are kept and before all are; returns how many were."""
    row_bytes = 4 * DIMENSION
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for worker in range(2):
            folder = JobFolder(fleet.results_dir(worker) / task_id)
            kept = folder.root / "vectors" / "vectors.f32"
            if kept.exists() and kept.stat().st_size:
                process = JobProcess.model_validate_json(folder.process_json.read_bytes())
                psutil.Process(process.pid).suspend()
                count = kept.stat().st_size // row_bytes
                os.kill(process.pid, signal.SIGKILL)
                return count
        time.sleep(0.002)
    raise AssertionError("no vectors were kept")


def test_a_database_that_one_worker_made_is_searched_on_the_other(client: Client) -> None:
    run = client.submit(EXAMPLES / "rag.yaml")
    flow = client.workflows.wait(run.workflow.id, timeout_s=PATIENCE_S)
    assert flow.status == "completed", [(task.name, task.error) for task in flow.tasks]
    found = {task.name: client.tasks.get(task.id) for task in flow.tasks}
    answers = result(found["answers"])["items"]
    hits = [query["items"][0]["payload"]["text"] for query in result(found["search"])["queries"]]
    assert ["apples" in hits[0], "train" in hits[1]] == [True, True]
    given = [answer["metadata"]["rendered_prompt"] for answer in answers]
    assert [hit in prompt for hit, prompt in zip(hits, given, strict=True)] == [True, True]
    assert all(answer["output"] for answer in answers)
    index = found["index"]
    assert result(index)["points"] == result(index)["documents"] == 4
    assert index.worker_id is not None
    client.workers.cordon(index.worker_id)
    try:
        asked = "How much bread does the bakery sell on Saturday?"
        query = {"qdrant": {"taskId": index.id, "collection": "notes"}, "query": asked}
        task = ended(client, submit(client, {"taskType": "rag", "embedding": {"model": BUILTIN}, **query}))
    finally:
        client.workers.uncordon(index.worker_id)
    assert task.worker_id not in {None, index.worker_id}
    hits = result(task)["queries"][0]["items"]
    assert [hits[0]["payload"]["source"], len(hits)] == ["bakery", 4]
    assert hits[0]["score"] > hits[1]["score"]


def test_a_server_is_filled_again_after_a_kill_and_each_of_two_tasks_gets_its_own_hits(
    client: Client, fleet: LocalFleet
) -> None:
    many = {f"doc-{number}": f"Page {number} of the long report." for number in range(300)}
    with QdrantDouble(KEY) as server:
        qdrant = {"url": server.url, "api_key": "${secret:QDRANT_KEY}", "collection": "notes"}
        shared = {"qdrant": qdrant, "embedding": {"model": BUILTIN}, "retry": {"backoff_s": 0}}
        killed: list[int] = []

        def kill_at_the_second_upsert(what: str) -> None:
            if what == "PUT /collections/notes/points" and server.seen.count(what) == 1 and not killed:
                killed.append(job_of(fleet, task_id))
                os.kill(killed[0], signal.SIGKILL)

        server.on_request = kill_at_the_second_upsert
        task_id = submit(client, {"taskType": "rag_index", **shared, "data": listed(NOTES | many)})
        indexed = ended(client, task_id)
        assert len(killed) == 1
        assert indexed.attempts == 2
        assert result(indexed)["points"] == result(indexed)["chunks"] == 303
        assert result(indexed)["usage"]["computed"] == 0
        asked = {
            "alice": ["The night train leaves the station at what time?", "Anna gives how many apples to her brother?"],
            "bob": ["The bakery sells warm rolls every morning?", "The night train leaves the station at what time?"],
        }
        nodes = [
            {"name": name, "spec": {"data": {"type": "list", "items": queries}}} for name, queries in asked.items()
        ]
        wanted = {"taskType": "rag", **shared, "search": {"top_k": 1}, "graph": {"nodes": nodes}}
        document = {"apiVersion": "tunefleet/v1", "metadata": {"name": "ask"}, "spec": wanted}
        server.seen.clear()
        run = client.submit(yaml.safe_dump(document))
        flow = client.workflows.wait(run.workflow.id, timeout_s=PATIENCE_S)
        found = {task.name: client.tasks.get(task.id) for task in flow.tasks}
        assert server.seen.count("POST /collections/notes/points/query/batch") == 1, "one run asks for both"
    hits = {
        name: [(each["query"], each["items"][0]["payload"]["source"]) for each in result(task)["queries"]]
        for name, task in found.items()
    }
    assert hits == {
        "alice": list(zip(asked["alice"], ["train", "apples"], strict=True)),
        "bob": list(zip(asked["bob"], ["bread", "train"], strict=True)),
    }
    said = client.tasks.get(task_id).model_dump_json() + "".join(log(fleet, task_id))
    assert KEY not in said


def log(fleet: LocalFleet, task_id: str) -> list[str]:
    """Return what the job has said and left in its folder, on whichever worker it is."""
    roots = [fleet.results_dir(worker) / task_id for worker in range(2)]
    files = [file for root in roots for file in root.rglob("*") if file.suffix in {".log", ".json", ".jsonl"}]
    assert files
    return [file.read_text() for file in files]


def job_of(fleet: LocalFleet, task_id: str) -> int:
    """Return the process id of a task's job, on whichever worker it is."""
    folders = [JobFolder(fleet.results_dir(worker) / task_id) for worker in range(2)]
    file = next(folder.process_json for folder in folders if folder.process_json.exists())
    return JobProcess.model_validate_json(file.read_bytes()).pid


def test_fault_a_collection_that_is_missing_is_named_with_those_that_there_are(client: Client) -> None:
    with QdrantDouble(KEY) as server:
        server.client.create_collection("other", vectors_config=VectorParams(size=7, distance=Distance.COSINE))
        qdrant = {"url": server.url, "api_key": "${secret:QDRANT_KEY}", "collection": "notes"}
        spec = {"taskType": "rag", "qdrant": qdrant, "embedding": {"model": BUILTIN}, "query": "What?"}
        server.answers = [503]
        task = ended(client, submit(client, {**spec, "retry": {"backoff_s": 0}}))
    assert (task.status, task.attempts) == ("failed", 2), "that the server had no time was tried again"
    assert task.error is not None
    assert "has no collection 'notes'. It has: other." in task.error
