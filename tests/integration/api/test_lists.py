"""Lists of tasks over HTTP: what is asked for comes, and what no list has is refused."""

from __future__ import annotations

from typing import Any

import httpx

from tests.integration.api.support import ECHO, HandWorker, Running, is_problem, submit, until


def test_tasks_are_searched_sorted_counted_and_cancelled_together(admin: httpx.Client) -> None:
    ids = [submit(admin, ECHO.replace("hello", f"walnut-{number}")) for number in (2, 0, 1)]
    reply = admin.get("/tasks", params={"q": "walnut", "sort": "name", "limit": 2, "glance": True}).json()
    assert [task["name"] for task in reply["items"]] == ["walnut-0", "walnut-1"]
    assert {task["workflow_name"] for task in reply["items"]} == {"walnut-0", "walnut-1"}
    rest = admin.get("/tasks", params={"q": "walnut", "sort": "name", "limit": 2, "cursor": reply["next_cursor"]})
    assert [task["name"] for task in rest.json()["items"]] == ["walnut-2"]
    counted = admin.get("/tasks/counts", params={"q": "walnut"}).json()
    assert (counted["total"], counted["kind"]) == (3, {"echo": 3})
    assert {task["id"] for task in admin.get("/overview").json()["queue"]} & set(ids)
    done = admin.post("/tasks/bulk", json={"action": "cancel", "task_ids": [*ids, "task-ffffffffffff"]}).json()
    assert [item["ok"] for item in done["items"]] == [True, True, True, False]
    assert admin.get("/tasks/counts", params={"q": "walnut"}).json()["status"] == {"cancelled": 3}


def test_what_no_list_has_is_refused(admin: httpx.Client, running: Running) -> None:
    is_problem(admin.get("/tasks", params={"sort": "spec"}), 422, "input_invalid")
    is_problem(admin.get("/tasks/counts", params={"limit": 3}), 422, "input_invalid")
    is_problem(admin.get("/tasks", params={"sort": "name", "cursor": "12"}), 422, "input_invalid")
    is_problem(admin.post("/tasks/bulk", json={"action": "abort", "task_ids": ["a"]}), 422, "request_invalid")
    is_problem(admin.post("/tasks/bulk", json={"action": "cancel", "task_ids": []}), 422, "request_invalid")
    with running.client() as nobody:
        is_problem(nobody.get("/overview"), 401, "unauthenticated")


def test_every_example_is_one_that_the_server_takes(admin: httpx.Client) -> None:
    found = admin.get("/examples").json()
    assert {"lora_sft", "dpo", "pipeline"} <= {example["name"] for example in found}
    for example in found:
        told = admin.post("/workflows/validate", json={"document": example["document"]}).json()
        assert told["ok"], (example["name"], told["faults"])


def test_the_past_of_a_machine_is_read_by_time(admin: httpx.Client, hand: HandWorker) -> None:
    hand.exchange(load={"memory_free_bytes": 5, "disk_free_bytes": 6, "load_1m": 1.5})

    def past(**asked: str) -> list[dict[str, Any]]:
        reply = admin.get(f"/workers/{hand.worker_id}/history", params=asked)
        assert reply.status_code == 200, reply.text
        samples: list[dict[str, Any]] = reply.json()["samples"]
        return samples

    until(past)
    (sample,) = past()
    assert sample["load"]["load_1m"] == 1.5
    assert past(until=sample["at"]) == past(since=sample["at"]) == [sample]
    assert past(since="2999-01-01T00:00:00Z") == past(until="2001-01-01T00:00:00+02:00") == []
    for wrong in ({"since": "soon"}, {"since": "2026-01-01T00:00:00"}, {"max_points": "0"}):
        is_problem(admin.get(f"/workers/{hand.worker_id}/history", params=wrong), 422, "request_invalid")
