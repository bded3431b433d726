"""The task routes as clients of the first version use them, and what our own clients get on the same paths."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.integration.api.support import ECHO, HandWorker, Running, submit
from tunefleet.orchestrator.compat import v1_tasks
from tunefleet.schemas.v1_tasks import TaskAnswer, TaskRecord

TWO = """apiVersion: mloc/v1
kind: EchoTask
metadata: {name: base, owner: me}
spec:
  taskType: echo
  resources: {estimatedLoad: 3}
  output:
    destination: {type: http, url: "http://user:pass@host:8000/api/v1/results", headers: {Authorization: Bearer abc}}
  stages:
    - {name: first, spec: {data: {type: list, items: [a]}}}
    - {name: second, spec: {data: {type: list, items: ["${first.result.items.0}"]}}}
"""
YAML = {"Content-Type": "text/plain"}


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (TWO.encode(), YAML),
        (TWO.encode(), {"Content-Type": "application/x-yaml"}),
        (json.dumps({"yaml": TWO}).encode(), {"Content-Type": "application/json"}),
        (json.dumps(TWO).encode(), {"Content-Type": "application/json; charset=utf-8"}),
    ],
    ids=["text", "yaml", "object", "string"],
)
def test_a_document_is_submitted_as_v1_does(admin: httpx.Client, body: bytes, headers: dict[str, str]) -> None:
    reply = admin.post("/tasks", content=body, headers=headers)
    assert reply.status_code == 200, reply.text
    made = reply.json()
    assert (made["ok"], made["count"]) == (True, 2)
    first, second = made["tasks"]
    assert first["waiting_on"] == first["depends_on"] == []
    assert second == {
        "task_id": second["task_id"], "status": "PENDING", "assigned_worker": None, "topic": "tasks",
        "waiting_on": [first["task_id"]], "depends_on": [first["task_id"]], "attempts": 0, "max_attempts": 3, "load": 3,
    }  # fmt: skip


STAGED = """apiVersion: flowmesh/v1
metadata: {name: staged}
spec:
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {prompts: [a]}
  output: {destination: {type: http}}
  stages:
    - {name: one, spec: {taskType: sft}}
    - {name: two, spec: {taskType: sft, checkpoint: {load: {type: http, url: "${one.KEY}"}}}}
"""


@pytest.mark.story
def test_a_reference_that_can_have_no_value_is_refused_before_anything_runs(admin: httpx.Client) -> None:
    for key in ("final_model_archive", "result.final_model_archive_url"):
        made = admin.post("/tasks", content=STAGED.replace("KEY", key).encode(), headers=YAML)
        assert (made.status_code, made.json()["count"]) == (200, 2), made.text
    for key, hint in (("final_lora_archive", "write final_model_archive"), ("final_modle_archive", "did you mean")):
        refused = admin.post("/tasks", content=STAGED.replace("KEY", key).encode(), headers=YAML)
        assert refused.status_code == 400, refused.text
        (fault,) = refused.json()["faults"]
        assert (fault["line"], fault["path"]) == (9, "spec.stages.1.spec.checkpoint.load.url")
        assert hint in fault["hint"]


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        (b"", "text/plain", "empty"),
        (b"  \n", "text/plain", "empty"),
        (b"\xff\xfe", "text/plain", "UTF-8"),
        (b"{", "application/json", "not JSON"),
        (b'{"yml": "x"}', "application/json", "no workflow file"),
        (b"[1]", "application/json", "no workflow file"),
        (b'""', "application/json", "empty"),
        (b"a: [", "text/plain", "line 2"),
        (b"- a\n- b\n", "text/plain", "not a mapping"),
        (b"a: 1\n---\nb: 2\n", "text/plain", "fault"),
        (TWO.replace("stages:", "stages: 7\n  x:").encode(), "text/plain", "fault"),
        (TWO.replace("first.result", "thrid.result").encode(), "text/plain", "thrid"),
        (TWO.replace("name: first,", "name: first, dependsOn: [second],").encode(), "text/plain", "second"),
        (ECHO.replace("taskType: echo", "taskType: ecco").encode(), "text/plain", "did you mean echo"),
        (ECHO.replace("  data:", "  dependsOn: [task-0a0b]\n  data:").encode(), "text/plain", "task-0a0b"),
        (b"a: &a {<<: *a, b: 1}", "text/plain", "part of"),
        (ECHO.encode() + b"  priority: 0x" + b"f" * 6_000, "text/plain", "too large"),
        (ECHO.encode() + b"  resources: {estimatedLoad: '99999999999999999999999'}", "text/plain", "too large"),
        (ECHO.encode() + b"  resources: {hardware: {cpu: 99999999999999999999999}}", "text/plain", "too large"),
        (ECHO.encode() + b"  resources: {hardware: {gpu: {count: '99999999999999999999'}}}", "text/plain", "too large"),
        (ECHO.replace("data: {", "data: {metadata: [{n: 99999999999999999999999}], ").encode(), "text/plain", "large"),
    ],
    ids=[
        "nothing", "blanks", "no-utf8", "no-json", "no-yaml-key", "json-list", "empty-string", "no-yaml", "list",
        "two-documents", "stages-no-list", "dangling-reference", "circle", "unknown-kind", "unknown-dependency",
        "merges-itself", "hexadecimal", "load", "cores", "gpus", "metadata-of-an-item",
    ],
)  # fmt: skip
def test_fault_38_a_bad_document_is_the_senders_fault(admin: httpx.Client, body: bytes, kind: str, says: str) -> None:
    reply = admin.post("/tasks", content=body, headers={"Content-Type": kind})
    assert reply.status_code == 400, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    problem = reply.json()
    assert problem["status"] == 400
    assert says in json.dumps(problem)


def test_fault_38_a_large_number_in_a_result_is_kept_as_a_text(admin: httpx.Client, hand: HandWorker) -> None:
    made = admin.post("/tasks", content=TWO, headers=YAML).json()["tasks"]
    token = hand.take(made[0]["task_id"])
    result = {"items": [10**30], "small": {"n": 2**64 - 1}}
    finish = {"token": token, "outcome": "completed", "reason": "finished", "result": result}
    assert token in hand.exchange(finishes=[finish])["finished"]
    hand.holding.remove(token)
    kept = admin.get(f"/results/{made[0]['task_id']}").json()["result"]
    assert kept == {"items": [str(10**30)], "small": {"n": 2**64 - 1}}
    hand.finish(hand.take(made[1]["task_id"]))


def test_the_bare_list_has_v1s_records(admin: httpx.Client, hand: HandWorker) -> None:
    made = admin.post("/tasks", content=TWO, headers=YAML).json()["tasks"]
    reply = admin.get("/tasks")
    assert isinstance(reply.json(), list)
    assert "Link" not in reply.headers
    mine = {record["task_id"]: record for record in reply.json()}
    assert set(mine[made[0]["task_id"]]) == set(TaskRecord.model_fields)
    token = hand.take(made[0]["task_id"])
    mine = {record["task_id"]: record for record in admin.get("/tasks").json()}
    first, second = (mine[task["task_id"]] for task in made)
    assert (first["status"], first["assigned_worker"], first["attempts"]) == ("DISPATCHED", "by-hand", 1)
    assert first["submitted_ts"] <= first["dispatched_ts"] <= first["started_ts"]
    assert (second["status"], second["graph_node_name"], second["load"]) == ("PENDING", "second", 3)
    assert first["submission_id"] == second["submission_id"]
    assert (first["task_type"], first["category"]) == ("echo", "other")
    assert first["parsed"]["spec"]["data"]["items"] == ["a"]
    hand.finish(token)
    one = admin.get(f"/tasks/{first['task_id']}", params={"format": "v1"}).json()
    assert (one["status"], one["record_status"], one["completed"], one["failed"]) == ("DONE", "completed", True, False)
    assert one["dependents"] == [second["task_id"]]
    ours = admin.get(f"/tasks/{second['task_id']}").json()
    # It takes an item that the hand-made result does not have.
    assert (ours["status"], ours["record_status"], ours["failed"]) == ("failed", "FAILED", True)
    assert ours["depends_on"] == [first["task_id"]]
    assert set(ours) == set(TaskAnswer.model_fields)


def test_with_any_parameter_the_list_is_ours(admin: httpx.Client) -> None:
    submit(admin)
    for query in ({"limit": 1}, {"status": "queued"}, {"kind": "echo"}):
        page = admin.get("/tasks", params=query).json()
        assert page["items"][0]["status"] == "queued"
        assert len(page["items"]) <= 50


def test_the_bare_list_leads_on_to_older_tasks(
    admin: httpx.Client, monkeypatch: pytest.MonkeyPatch, running: Running
) -> None:
    ids = [submit(admin) for _ in range(4)][::-1]
    monkeypatch.setattr(v1_tasks, "NEWEST", 2)
    reply = admin.get("/tasks")
    assert [record["task_id"] for record in reply.json()] == ids[:2]
    older = admin.get(f"{running.url}{reply.links['next']['url']}").json()
    assert [task["id"] for task in older["items"]][:2] == ids[2:]


def test_the_bare_list_ends_early_where_records_repeat_a_large_document(
    admin: httpx.Client, monkeypatch: pytest.MonkeyPatch, running: Running
) -> None:
    stages = "".join(f"  - {{name: s{i}, spec: {{data: {{items: [{'x' * 500}]}}}}}}\n" for i in range(120))
    document = f"apiVersion: tunefleet/v1\nspec:\n  taskType: echo\n  stages:\n{stages}"
    made = admin.post("/tasks", content=document, headers=YAML).json()["tasks"]
    ids = [task["task_id"] for task in made][::-1]
    monkeypatch.setattr(v1_tasks, "LISTED_CHARACTERS", 70 * len(document))
    reply = admin.get("/tasks")
    listed = [record["task_id"] for record in reply.json()]
    assert 50 < len(listed) < 80
    assert listed == ids[: len(listed)]
    older = admin.get(f"{running.url}{reply.links['next']['url']}").json()
    rest = ids[len(listed) :]
    assert [task["id"] for task in older["items"]][: len(rest)] == rest
    monkeypatch.setattr(v1_tasks, "LISTED_CHARACTERS", 1)
    assert [record["task_id"] for record in admin.get("/tasks").json()] == ids[:1]


def test_fault_36_secrets_in_a_document_are_not_read_back(admin: httpx.Client) -> None:
    made = admin.post("/tasks", content=TWO, headers=YAML).json()["tasks"]
    one = admin.get(f"/tasks/{made[0]['task_id']}").json()
    flow = admin.get(f"/workflows/{one['workflow_id']}").json()
    listed = next(each for each in admin.get("/tasks").json() if each["task_id"] == one["id"])
    shown: list[Any] = [one, flow, listed]
    for each in shown:
        text = json.dumps(each)
        assert "Bearer abc" not in text
        assert "pass@" not in text
    assert one["spec"]["output"]["destination"]["headers"] == {"Authorization": "***"}
    assert 'headers: {Authorization: "***"}' in flow["document"]
    assert 'headers: {Authorization: "***"}' in listed["raw_yaml"]
