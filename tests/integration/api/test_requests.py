"""What a request may look like, and what its failure looks like."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.api.support import ECHO, HandWorker, Running, is_problem, submit, until
from tunefleet import errors
from tunefleet.api import problem_details
from tunefleet.artifacts import manifest_digest


def test_every_error_has_a_status() -> None:
    # Errors of the host side never come this far; another test of the same run may have imported them.
    sides = tuple(f"tunefleet.{part}" for part in ("errors", "spec", "artifacts", "db", "orchestrator", "api"))

    def codes(root: type[errors.TunefleetError]) -> set[str]:
        return {root.code}.union(
            *(codes(child) for child in root.__subclasses__() if child.__module__.startswith(sides))
        )

    assert codes(errors.TunefleetError) <= set(problem_details.STATUSES)


def test_bad_document_lists_every_fault_with_its_line(admin: httpx.Client) -> None:
    document = ECHO.replace("items:", "itemz:") + "  unknown: 1\n"
    body = is_problem(admin.post("/workflows", json={"document": document}), 422, "spec_invalid")
    assert len(body["faults"]) >= 2
    assert all(fault["line"] > 0 for fault in body["faults"])
    reply = admin.post("/workflows/validate", json={"document": document})
    assert reply.status_code == 200
    assert reply.json()["ok"] is False
    assert len(reply.json()["faults"]) >= 2


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"document": 1}', b'{"document": "", "nonsense": 1}'])
def test_bad_body_is_a_problem_that_names_the_field(admin: httpx.Client, body: bytes) -> None:
    reply = admin.post("/workflows", content=body, headers={"Content-Type": "application/json"})
    assert is_problem(reply, 422, "request_invalid")["faults"]


def test_a_number_that_does_not_fit_the_store_is_the_senders_fault(admin: httpx.Client) -> None:
    digest = manifest_digest([])
    body = {"name": "empty", "files": [], "digest": digest, "metadata": {"seed": 10**30}}
    said = is_problem(admin.post("/artifacts", json=body), 422, "request_invalid")
    assert "64" in said["detail"]
    assert "as strings" in said["hint"]
    assert admin.post("/artifacts", json={**body, "metadata": {"seed": str(10**30)}}).status_code == 201


def test_bad_query_unknown_path_and_method_are_problems(admin: httpx.Client) -> None:
    fault = is_problem(admin.get("/tasks?limit=0"), 422, "request_invalid")["faults"][0]
    assert "limit" in fault["path"]
    is_problem(admin.get("/nothing"), 404, "not_found")
    is_problem(admin.get("/tasks/task-ffffffffffff"), 404, "not_found")
    reply = admin.put("/tasks")
    is_problem(reply, 405, "method_not_allowed")
    assert "GET" in reply.headers["allow"]


def test_document_may_be_sent_as_yaml(admin: httpx.Client) -> None:
    reply = admin.post("/workflows", content=ECHO, headers={"Content-Type": "application/yaml; charset=utf-8"})
    assert reply.status_code == 201, reply.text
    assert reply.json()["document"] == ECHO
    bad = admin.post("/workflows", content=b"\xff\xfe", headers={"Content-Type": "application/yaml"})
    is_problem(bad, 422, "request_invalid")
    is_problem(
        admin.post("/workflows", content=ECHO, headers={"Content-Type": "image/png"}), 415, "unsupported_media_type"
    )


def test_submit_is_idempotent(admin: httpx.Client) -> None:
    def send(key: str) -> str:
        reply = admin.post("/workflows", json={"document": ECHO}, headers={"Idempotency-Key": key})
        assert reply.status_code == 201, reply.text
        return str(reply.json()["id"])

    first = send("one")
    assert send("one") == first
    assert send("two") != first


def test_body_over_the_limit_is_refused_before_it_is_read(admin: httpx.Client, running: Running) -> None:
    limit = running.core.settings.max_body_bytes
    declared = admin.post("/workflows", content=b"x" * (limit + 1), headers={"Content-Type": "application/yaml"})
    assert str(limit) in is_problem(declared, 413, "too_large")["detail"]

    def chunks() -> Iterator[bytes]:
        for _ in range(limit // 65536 + 1):
            yield b"x" * 65536

    for path in ["/workflows", "/keys", "/link/exchange"]:
        reply = admin.post(path, content=chunks(), headers={"Content-Type": "application/json"})
        is_problem(reply, 413, "too_large")
    assert admin.get("/healthz").status_code == 200


def test_upload_over_its_limit_is_refused(start: Callable[..., Running], tmp_path: Path) -> None:
    running = start(tmp_path / "data", max_upload_bytes=1000)
    try:
        with running.client(running.admin_key) as client:
            headers = {"Upload-Offset": "0", "Upload-Length": "2000"}
            reply = client.put(f"/blobs/{'0' * 64}", content=b"x" * 2000, headers=headers)
            is_problem(reply, 413, "too_large")
    finally:
        running.stop()
        running.core.close()


def test_security_headers_are_on_every_answer(admin: httpx.Client, running: Running) -> None:
    for reply in [admin.get("/tasks"), admin.get("/nothing"), httpx.get(f"{running.url}/login")]:
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert reply.headers["cache-control"] == "no-store"
        assert "server" not in reply.headers


def test_configured_origin_gets_cors_without_credentials(start: Callable[..., Running], tmp_path: Path) -> None:
    running = start(tmp_path / "data", cors_origins=("https://lab.example",))
    try:
        with running.client(running.admin_key) as client:
            preflight = client.options(
                "/tasks",
                headers={
                    "Origin": "https://lab.example",
                    "Access-Control-Request-Method": "GET",
                    "Access-Control-Request-Headers": "authorization",
                },
            )
            assert preflight.headers["access-control-allow-origin"] == "https://lab.example"
            assert "access-control-allow-credentials" not in preflight.headers
            other = client.get("/tasks", headers={"Origin": "https://evil.example"})
            assert "access-control-allow-origin" not in other.headers
    finally:
        running.stop()
        running.core.close()


def test_unexpected_failure_tells_nothing_and_logs_all(
    admin: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("the secret is 1234")

    monkeypatch.setattr("tunefleet.orchestrator.tasks.listing.page", broken)

    def traced() -> bool:
        return any(record.exc_info and "1234" in str(record.exc_info[1]) for record in caplog.records)

    with caplog.at_level(logging.ERROR):
        body = is_problem(admin.get("/tasks", params={"limit": 1}), 500, "internal")
        until(traced)  # it is logged in the server's thread, after the answer
    assert "1234" not in str(body)


def test_background_loop_survives_a_failure(
    start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked = 0

    async def fails_once(_: object) -> int:
        nonlocal looked
        looked += 1
        if looked == 1:
            raise RuntimeError("the first look failed")
        return 0

    monkeypatch.setattr("tunefleet.orchestrator.scheduling.reaper.run_once", fails_once)
    running = start(tmp_path / "data")
    until(lambda: looked > 1)
    running.stop()
    running.core.close()
    assert "The sweep loop failed" in caplog.text
    assert "the first look failed" in caplog.text


def test_access_log_has_no_query_string(admin: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="tunefleet.server.access"):
        admin.get("/tasks?limit=7")
        admin.post("/keys?code=secret-code", json={"name": "logged"})
    lines = [record.getMessage() for record in caplog.records if record.name == "tunefleet.server.access"]
    assert any("/api/v1/tasks" in line and "200" in line for line in lines)
    assert not any("limit=7" in line or "secret-code" in line for line in lines)


def test_lists_are_paged_and_filtered(admin: httpx.Client) -> None:
    made = {submit(admin) for _ in range(5)}
    found: list[str] = []
    cursor = None
    while True:
        page = admin.get("/tasks", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        assert len(page["items"]) <= 2
        found += [task["id"] for task in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert len(found) == len(set(found))
    assert made <= set(found)
    assert admin.get("/tasks?kind=sft").json()["items"] == []
    one = admin.get(f"/tasks/{found[0]}").json()
    assert admin.get("/tasks", params={"workflow_id": one["workflow_id"]}).json()["items"][0]["id"] == found[0]
    is_problem(admin.get("/tasks?cursor=nonsense"), 422, "input_invalid")


def test_short_lists_are_paged_too(admin: httpx.Client) -> None:
    for number in range(3):
        admin.post("/keys", json={"name": f"key {number}"})
    first = admin.get("/keys", params={"limit": 2}).json()
    rest = admin.get("/keys", params={"cursor": first["next_cursor"]}).json()
    ids = [key["id"] for key in first["items"] + rest["items"]]
    assert len(first["items"]) == 2
    assert len(ids) == len(set(ids)) >= 5
    assert rest["next_cursor"] is None
    assert all("secret" not in key for key in first["items"])
    is_problem(admin.get("/keys?cursor=nonsense"), 422, "input_invalid")


def _pages(client: httpx.Client, path: str, **filters: Any) -> list[str]:
    """Walk a list one item a page; returns the ids."""
    found: list[str] = []
    cursor = None
    while True:
        page = client.get(path, params={"limit": 1, **filters, **({"cursor": cursor} if cursor else {})}).json()
        assert len(page["items"]) <= 1
        found += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            return found


def test_workflows_and_tasks_have_their_filters(admin: httpx.Client) -> None:
    mine = admin.get(f"/tasks/{submit(admin)}").json()
    other = admin.post("/workflows", json={"document": ECHO.replace("hello}", "named}")}).json()
    assert _pages(admin, "/workflows", name="named") == [other["id"]]
    assert mine["workflow_id"] in _pages(admin, "/workflows", status="running,failed", owner="admin")
    assert _pages(admin, "/workflows", owner="nobody") == []
    assert mine["id"] in _pages(admin, "/tasks", status="queued,dispatched", kind="echo", owner="admin")
    assert _pages(admin, "/tasks", workflow_id=mine["workflow_id"]) == [mine["id"]]
    assert _pages(admin, "/tasks", worker_id="nobody") == []
    assert _pages(admin, "/tasks", status="paused") == []


def test_keys_have_their_filters(admin: httpx.Client, as_role: Callable[[str], httpx.Client]) -> None:
    as_role("viewer")
    viewers = [key["id"] for key in admin.get("/keys").json()["items"] if key["role"] == "viewer"]
    assert viewers
    assert _pages(admin, "/keys", role="viewer") == viewers
    assert admin.delete(f"/keys/{viewers[-1]}").status_code == 204
    assert viewers[-1] in _pages(admin, "/keys", revoked=True)
    assert viewers[-1] not in _pages(admin, "/keys", revoked=False)
    assert len(_pages(admin, "/keys", owner="worker")) == 1
    assert _pages(admin, "/keys", owner="nobody") == []


def test_events_are_paged_and_filtered(admin: httpx.Client) -> None:
    task = admin.get(f"/tasks/{submit(admin)}").json()
    workflow = {"workflow_id": task["workflow_id"]}
    every = admin.get("/events", params=workflow).json()
    assert [event["kind"] for event in every][:2] == ["workflow.submitted", "task.queued"]
    one = admin.get("/events", params={**workflow, "limit": 1}).json()
    rest = admin.get("/events", params={**workflow, "after": one[0]["id"]}).json()
    assert one + rest == every
    queued = admin.get("/events", params={"task_id": task["id"], "kinds": "task.queued,task.failed"}).json()
    assert [(event["kind"], event["task_id"]) for event in queued] == [("task.queued", task["id"])]


@pytest.mark.parametrize("path", ["/tasks", "/workflows", "/workers", "/artifacts", "/keys", "/events", "/info"])
def test_a_misspelt_parameter_is_refused(admin: httpx.Client, path: str) -> None:
    body = is_problem(admin.get(path, params={"statsu": "failed"}), 422, "input_invalid")
    assert body["detail"] == f"Unknown parameter 'statsu' of /api/v1{path}."
    assert ("status" in body["hint"]) is (path in {"/tasks", "/workflows", "/workers"})


@pytest.mark.parametrize(
    "path", ["/tasks?status=done", "/workflows?status=queued", "/workers?status=x", "/keys?role=x"]
)
def test_a_filter_for_what_cannot_be_is_refused(admin: httpx.Client, path: str) -> None:
    assert "is not one of" in is_problem(admin.get(path), 422, "request_invalid")["detail"]


def test_task_is_retried_cloned_and_removed(admin: httpx.Client) -> None:
    task_id = submit(admin)
    assert admin.get(f"/tasks/{task_id}/why").json()["task_id"] == task_id
    is_problem(admin.delete(f"/tasks/{task_id}"), 409, "conflict")
    assert admin.post(f"/tasks/{task_id}/cancel").json()["status"] == "cancelled"
    retried = admin.post(f"/tasks/{task_id}/retry")
    assert retried.status_code == 201
    assert retried.json()["parent_task_id"] == task_id
    cloned = admin.post(f"/tasks/{task_id}/clone", json={"overrides": {"data.items": ["changed"]}})
    assert cloned.status_code == 201, cloned.text
    assert cloned.json()["spec"]["data"]["items"] == ["changed"]
    bad = admin.post(f"/tasks/{task_id}/clone", json={"overrides": {"data.itemz": ["changed"]}})
    is_problem(bad, 422, "spec_invalid")
    assert admin.delete(f"/tasks/{task_id}").status_code == 204
    is_problem(admin.get(f"/tasks/{task_id}"), 404, "not_found")


def test_keys_of_somebody_else_are_not_sent_elsewhere(admin: httpx.Client, running: Running) -> None:
    document = """apiVersion: tunefleet/v1
metadata: {name: call}
spec: {taskType: api, api: {url: "https://example.org/x", headers: {Authorization: "Bearer of-ann"}}}
"""
    keys = {name: {"name": f"{name}'s", "role": "member", "owner": name} for name in ("ann", "bob")}
    ann, bob = (running.client(admin.post("/keys", json=key).json()["secret"]) for key in keys.values())
    with ann, bob:
        task_id = submit(ann, document)
        workflow_id = ann.get(f"/tasks/{task_id}").json()["workflow_id"]
        assert ann.post(f"/tasks/{task_id}/cancel").status_code == 200
        changes = {"overrides": {"api.url": "https://evil.example.org/x"}}
        for path in (f"/tasks/{task_id}/clone", f"/workflows/{workflow_id}/retry"):
            refused = is_problem(bob.post(path, json=changes), 403, "forbidden")
            assert "keys of ann" in refused["detail"]
            assert ann.post(path, json=changes).status_code == 201
        assert bob.post(f"/tasks/{task_id}/clone", json={"overrides": {}}).status_code == 201
        plain = submit(ann, document.replace('"Bearer of-ann"', '"${secret:KEY}"'))
        assert bob.post(f"/tasks/{plain}/clone", json=changes).status_code == 201


def test_workflow_is_listed_cancelled_removed_and_pruned(admin: httpx.Client) -> None:
    workflow_id = admin.get(f"/tasks/{submit(admin)}").json()["workflow_id"]
    assert admin.get(f"/workflows/{workflow_id}").json()["document"] == ECHO
    assert workflow_id in [view["id"] for view in admin.get("/workflows?limit=1000").json()["items"]]
    assert admin.post(f"/workflows/{workflow_id}/cancel").json()["status"] == "cancelled"
    plan = admin.post("/prune", json={"older_than_s": 0, "dry_run": True}).json()
    assert workflow_id in plan["workflows"]
    assert admin.delete(f"/workflows/{workflow_id}").status_code == 204
    is_problem(admin.get(f"/workflows/{workflow_id}"), 404, "not_found")


def test_worker_is_shown(admin: httpx.Client, hand: HandWorker) -> None:
    listed = admin.get("/workers?status=online").json()["items"]
    assert [worker["id"] for worker in listed] == [hand.worker_id]
    assert admin.get(f"/workers/{hand.worker_id}").json()["capabilities"]["hostname"] == "test"
    is_problem(admin.get("/workers/nobody"), 404, "not_found")
