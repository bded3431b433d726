"""`GET /metrics` of a real server, read as Prometheus reads it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.api.support import ECHO, HandWorker, Running, submit, until
from tunefleet.orchestrator.observability import gauges
from tunefleet.orchestrator.observability.gauges import Gauges

TEXT = "text/plain;version=0.0.4"


def scrape(running: Running, *, key: str | None = None) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return every sample of a server by name and labels."""
    headers = {"Authorization": f"Bearer {key or running.admin_key}", "Accept": TEXT}
    reply = httpx.get(f"{running.url}/metrics", headers=headers, timeout=60)
    assert reply.status_code == 200, reply.text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


def value(samples: dict[Any, float], name: str, **labels: str) -> float:
    """Return the sum of a family's samples that have these labels."""
    wanted = labels.items()
    return sum(each for (found, has), each in samples.items() if found == name and wanted <= dict(has).items())


def test_the_path_has_prometheus_text_unless_json_is_asked_for(running: Running) -> None:
    def ask(accept: str, key: str | None = running.admin_key) -> httpx.Response:
        headers = {"Accept": accept, **({"Authorization": f"Bearer {key}"} if key else {})}
        return httpx.get(f"{running.url}/metrics", headers=headers)

    assert ask("*/*").headers["content-type"].startswith("text/plain; version=0.0.4")
    whole = ask("application/openmetrics-text;version=1.0.0,*/*;q=0.1")
    assert whole.headers["content-type"].startswith("application/openmetrics-text")
    assert {family.name for family in openmetrics(whole.text)} >= {"tunefleet_tasks", "tunefleet_http_requests"}
    assert "counters" in ask("application/json").json()
    assert ask("text/html").status_code == 406
    assert ask("*/*", key=None).status_code == 401
    assert ask("*/*", key=running.worker_key).status_code == 403


def test_a_tasks_way_is_counted(running: Running, admin: httpx.Client, hand: HandWorker, monkeypatch: Any) -> None:
    monkeypatch.setattr(gauges, "FRESH_S", 0.0)
    before = scrape(running)
    task_id = submit(admin)
    token = hand.take(task_id)
    held = scrape(running)
    assert value(held, "tunefleet_leases", state="accepted") == 1
    assert value(held, "tunefleet_tasks", status="running", kind="echo") == 1
    hand.finish(token)
    after = scrape(running)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert grown("tunefleet_task_moves_total", status="queued", kind="echo") == 1
    assert grown("tunefleet_task_moves_total", status="completed", reason="finished") == 1
    assert grown("tunefleet_placement_seconds_count", kind="echo") == 1
    assert grown("tunefleet_accept_seconds_count", kind="echo") == 1
    assert grown("tunefleet_attempt_seconds_count", kind="echo") == 1
    assert 0 <= grown("tunefleet_placement_seconds_sum") < 60
    assert grown("tunefleet_link_exchanges_total", outcome="answered") >= 3
    assert grown("tunefleet_link_offers_sent_total") >= 1
    assert grown("tunefleet_http_requests_total", method="POST", route="/api/v1/workflows", status="2xx") == 1
    assert grown("tunefleet_store_group_operations_count") >= 3
    assert value(after, "tunefleet_workers", state="online") == value(after, "tunefleet_workers_answering") == 1


def test_a_journal_that_comes_late_shows_as_lag(running: Running, admin: httpx.Client, hand: HandWorker) -> None:
    token = hand.take(submit(admin))
    before = scrape(running)
    task_id = admin.get("/tasks", params={"status": "running"}).json()["items"][0]["id"]
    old = time.time() - 100
    lines = [json.dumps({"seq": 0, "at": old, "type": "launch", "launch": "l1"})]
    lines += [json.dumps({"seq": n, "at": old, "type": "metric", "step": n, "values": {"loss": 1.0}}) for n in (1, 2)]
    with running.client(token) as job:
        reply = job.post(f"/tasks/{task_id}/journal", json={"launch": "l1", "from_seq": 0, "lines": lines})
    assert reply.json() == {"cursor": 3}, reply.text
    after = scrape(running)
    assert value(after, "tunefleet_journal_records_total") - value(before, "tunefleet_journal_records_total") == 3
    assert value(after, "tunefleet_journal_lag_seconds_sum") - value(before, "tunefleet_journal_lag_seconds_sum") >= 100
    hand.finish(token)


def test_demand_that_nobody_serves_is_told_by_what_it_needs(
    running: Running, admin: httpx.Client, hand: HandWorker, monkeypatch: Any
) -> None:
    monkeypatch.setattr(gauges, "FRESH_S", 0.0)
    needs = "  resources: {hardware: {gpu: {count: 2, type: H100, memory: 80GiB}}, tags: [lab]}\n"
    task_id = submit(admin, ECHO.replace("  taskType: echo\n", f"  taskType: echo\n{needs}"))
    found = scrape(running)
    labels = {"gpu": "H100", "gpus": "2", "vram_gib": "80", "tags": "lab", "served": "no"}
    assert value(found, "tunefleet_demand_tasks", **labels) == 1
    assert value(found, "tunefleet_queue_oldest_seconds") > 0
    assert admin.post(f"/tasks/{task_id}/cancel").status_code in {200, 202}
    assert value(scrape(running), "tunefleet_demand_tasks", **labels) == 0


def test_gpus_are_told_by_model_from_what_workers_report(
    start: Callable[..., Running], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(gauges, "FRESH_S", 0.0)
    server = start(tmp_path / "data", metrics="open")
    try:
        gpus = [
            {"index": n, "name": "NVIDIA H100", "uuid": f"GPU-{n}", "memory_total_bytes": 80 << 30} for n in range(2)
        ]
        with server.client(server.worker_key) as client:
            worker = HandWorker(client, "with-gpus", gpus=gpus)
            worker.register()
            loads = [
                {"uuid": f"GPU-{n}", "memory_free_bytes": 10 << 30, "utilisation_percent": 50.0 * n, "power_w": 300.0}
                for n in range(2)
            ]
            load = {"memory_free_bytes": 1, "disk_free_bytes": 1, "gpus": loads}
            worker.exchange(want={"light": 1}, load=load)
            found = scrape(server)
            model = {"model": "NVIDIA H100"}
            assert value(found, "tunefleet_gpus", **model) == 2
            assert value(found, "tunefleet_gpu_utilisation_ratio", **model) == 0.25
            assert value(found, "tunefleet_gpu_memory_free_bytes", **model) == 20 << 30
            assert value(found, "tunefleet_gpu_memory_total_bytes", **model) == 160 << 30
            assert value(found, "tunefleet_gpu_power_watts", **model) == 600
            own = {"worker": "with-gpus", **model}
            assert value(found, "tunefleet_worker_gpu_utilisation_ratio", **own) == 0.25
            assert value(found, "tunefleet_worker_gpu_memory_free_bytes", **own) == 20 << 30
            # So many workers are told by themselves; the others count in their model's figures.
            monkeypatch.setattr(gauges, "MOST_WORKERS", 0)
            found = scrape(server)
            assert "tunefleet_worker_gpu_utilisation_ratio" not in {name for name, _ in found}
            assert value(found, "tunefleet_gpus", **model) == 2
        assert httpx.get(f"{server.url}/metrics").status_code == 200  # it is open
    finally:
        server.stop()
        server.core.close()


def test_labels_hold_neither_ids_nor_what_was_asked_for(running: Running, admin: httpx.Client) -> None:
    for path in ("/tasks/task-0123456789ab", "/no/such/path-7f3", "/workflows/wf-0123456789ab"):
        assert admin.get(path).status_code == 404
    labels = [dict(has) for name, has in scrape(running) if name.startswith("tunefleet_")]
    text = json.dumps(labels)
    assert "0123456789ab" not in text
    assert "path-7f3" not in text
    assert "by-hand" not in text
    assert {"/api/v1/tasks/{task_id}", "unmatched"} <= {has["route"] for has in labels if "route" in has}
    assert len(labels) < 2000


def test_a_server_that_counts_nothing_says_so(start: Callable[..., Running], tmp_path: Path) -> None:
    server = start(tmp_path / "data", metrics="off")
    try:
        headers = {"Authorization": f"Bearer {server.admin_key}", "Accept": TEXT}
        reply = httpx.get(f"{server.url}/metrics", headers=headers)
        assert (reply.status_code, "TUNEFLEET_METRICS" in reply.text) == (404, True)
        assert httpx.get(f"{server.url}/metrics", headers=headers | {"Accept": "application/json"}).status_code == 200
    finally:
        server.stop()
        server.core.close()


def test_an_answer_has_the_id_of_its_request(running: Running) -> None:
    first = httpx.get(f"{running.url}/healthz")
    assert len(first.headers["x-request-id"]) == 16
    assert httpx.get(f"{running.url}/healthz", headers={"X-Request-ID": "mine-1"}).headers["x-request-id"] == "mine-1"
    bad = httpx.get(f"{running.url}/healthz", headers={"X-Request-ID": "a b\tc"}).headers["x-request-id"]
    assert bad != "a b\tc"


def test_a_look_is_shared_for_some_seconds(running: Running, admin: httpx.Client) -> None:
    until(lambda: scrape(running))
    first = running.core.state(Gauges)._at
    scrape(running)
    assert running.core.state(Gauges)._at == first


def test_what_has_never_happened_is_told_as_zero(start: Callable[..., Running], tmp_path: Path) -> None:
    """A series that begins with its first event has not grown for Prometheus: its alert would not fire."""
    server = start(tmp_path / "data", storage_limit_bytes=1 << 30)
    try:
        found = scrape(server)
        for name, labels in (
            ("tunefleet_aggregations_total", {"outcome": "failed"}),
            ("tunefleet_campaign_trouble_total", {"event": "failed"}),
            ("tunefleet_notifications_total", {"format": "slack", "outcome": "failed"}),
        ):
            assert found[name, tuple(sorted(labels.items()))] == 0
        assert found["tunefleet_storage_limit_bytes", ()] == 1 << 30
        assert found["tunefleet_storage_used_bytes", ()] == 0
    finally:
        server.stop()
        server.core.close()
