"""A dataset over HTTP: looked at before it travels and after; and what a training on it would take."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import httpx

from tests.integration.api.support import HandWorker, is_problem
from tunefleet.artifacts import manifest_digest
from tunefleet.schemas.api import FileEntry

ROWS = b"".join(json.dumps({"prompt": f"{n}?", "response": "yes"}).encode() + b"\n" for n in range(100))


def push(client: httpx.Client, files: dict[str, bytes], name: str) -> str:
    entries = []
    for path, content in files.items():
        digest = hashlib.sha256(content).hexdigest()
        headers = {"Upload-Offset": "0", "Upload-Length": str(len(content))}
        assert client.put(f"/blobs/{digest}", content=content, headers=headers).status_code == 201
        entries.append(FileEntry(path=path, digest=digest, size_bytes=len(content)))
    body = {
        "name": name,
        "kind": "dataset",
        "files": [entry.model_dump() for entry in entries],
        "digest": manifest_digest(entries),
    }
    reply = client.post("/artifacts", json=body)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["id"])


def test_what_is_stored_is_looked_at(admin: httpx.Client, as_role: Callable[[str], httpx.Client]) -> None:
    files = {"README.md": b"about", "test.jsonl": b'{"text": "x"}\n', "train-00000.jsonl": ROWS}
    artifact = push(admin, files, "pairs")
    found = as_role("viewer").get(f"/artifacts/{artifact}/look", params={"rows": 2}).json()
    assert (found["file"], found["kind"], found["rows"], len(found["shown"])) == (
        "train-00000.jsonl", "prompt_response", 100, 2,
    )  # fmt: skip
    assert found["use"]["data"] == {"prompt_column": "prompt", "response_column": "response"}
    other = admin.get(f"/artifacts/{artifact}/look", params={"path": "test.jsonl"}).json()
    assert (other["file"], other["kind"]) == ("test.jsonl", "text")
    is_problem(admin.get(f"/artifacts/{artifact}/look", params={"path": "no.jsonl"}), 404, "not_found")
    nothing = push(admin, {"notes.md": b"none"}, "notes")
    is_problem(admin.get(f"/artifacts/{nothing}/look"), 422, "data_invalid")
    is_problem(admin.get("/artifacts/art-none/look"), 404, "not_found")


def test_a_beginning_is_looked_at_before_the_rest_travels(
    admin: httpx.Client, as_role: Callable[[str], httpx.Client]
) -> None:
    asked = {"name": "pairs.jsonl", "size_bytes": 1 << 30}
    found = admin.post("/datasets/look", params=asked, content=ROWS[:-5]).json()
    assert (found["kind"], found["rows"], found["fault_count"], found["size_bytes"]) == (
        "prompt_response", 99, 0, 1 << 30,
    )  # fmt: skip
    wrong = admin.post("/datasets/look", params={**asked, "size_bytes": 5}, content=b"nope\n").json()
    assert wrong["faults"][0]["line"] == 1
    is_problem(as_role("viewer").post("/datasets/look", params=asked, content=ROWS), 403, "forbidden")
    before = admin.get("/artifacts", params={"name": "pairs.jsonl"}).json()
    assert before["items"] == []


def test_a_dry_run_says_what_memory_a_training_takes(admin: httpx.Client, hand: HandWorker) -> None:
    document: dict[str, Any] = {
        "apiVersion": "tunefleet/v1",
        "kind": "Workflow",
        "metadata": {"name": "one"},
        "spec": {
            "taskType": "lora_sft",
            "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
            "data": {"path": "builtin:gsm8k"},
            "lora": {"r": 8, "target_modules": ["q_proj"]},
            "quantization": {"load_in_4bit": True, "compute_dtype": "float16"},
        },
    }

    def takes(**changes: Any) -> dict[str, Any]:
        spec = {**document["spec"], **changes}
        body = {"document": json.dumps({**document, "spec": spec})}
        reply = admin.post("/workflows/validate", params={"dry_run": True}, json=body).json()
        assert reply["ok"], reply
        memory: dict[str, Any] = reply["forecasts"][0]["memory"]
        return memory

    found = takes()
    sizes = {each["name"]: each["total_bytes"] for each in found["variants"]}
    assert [each["name"] for each in found["variants"] if each["as_written"]] == ["adapter_4bit"]
    assert sizes["whole"] > sizes["adapter"] > sizes["adapter_8bit"] > sizes["adapter_4bit"]
    assert found["compute"] == "float16"
    assert (found["trained"], 2_100_000 < found["weights"] < 2_200_000) == (4 * 8 * (192 + 192), True)
    plain = takes(quantization=None)
    assert [each["name"] for each in plain["variants"] if each["as_written"]] == ["adapter"]
    unknown = takes(model={"source": {"identifier": "./a folder"}})
    assert (unknown["variants"], "folder" in unknown["unknown"]) == ([], True)
    other = {**document, "spec": {"taskType": "echo", "data": {"type": "list", "items": ["a"]}}}
    reply = admin.post("/workflows/validate", params={"dry_run": True}, json={"document": json.dumps(other)}).json()
    assert reply["forecasts"][0]["memory"] is None
