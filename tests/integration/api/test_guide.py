"""Workers, elastic scaling and figures under the Worker Guide's own paths, on a real server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.integration.api.support import HandWorker, Running, submit


@pytest.fixture
def root(running: Running) -> Any:
    """A client for paths without `/api/v1`."""
    with httpx.Client(base_url=running.url, headers={"Authorization": f"Bearer {running.admin_key}"}) as client:
        yield client


def test_healthz_needs_no_key(running: Running) -> None:
    assert httpx.get(f"{running.url}/healthz").json() == {"ok": True}
    assert httpx.get(f"{running.url}/workers").status_code == 401
    assert httpx.get(f"{running.url}/metrics").status_code == 401


def test_workers_have_the_guides_fields(root: httpx.Client, hand: HandWorker) -> None:
    (worker,) = [one for one in root.get("/workers").json() if one["worker_id"] == "by-hand"]
    assert worker == root.get("/workers/by-hand").json()
    assert set(worker) == {
        "worker_id", "status", "started_at", "pid", "env", "hardware", "tags", "last_seen", "cached_models",
        "cached_datasets", "cache_updated_ts", "cost_per_hour", "stale", "elastic_disabled",
    }  # fmt: skip
    assert set(worker["hardware"]) == {"cpu", "memory", "gpu", "network"}
    assert (worker["status"], worker["stale"], worker["elastic_disabled"]) == ("IDLE", False, False)
    assert root.get("/workers/nobody").status_code == 404


@pytest.mark.parametrize("prefix", ["", "/api/v1"], ids=["guide", "ours"])
def test_a_worker_is_sent_to_rest_and_called_back(root: httpx.Client, hand: HandWorker, prefix: str) -> None:
    path = f"{prefix}/workers/by-hand/elastic"
    for enabled in (False, True):
        reply = root.post(path, json={"enabled": enabled})
        assert reply.json() == {"worker_id": "by-hand", "enabled": enabled, "elastic_disabled": not enabled}
        assert root.get("/workers/by-hand").json()["elastic_disabled"] is not enabled
    assert root.post(f"{prefix}/workers/nobody/elastic", json={"enabled": True}).status_code == 404
    assert root.post(path, json={"enabled": "perhaps"}).status_code == 422


def test_elastic_scaling_that_is_switched_off_answers_400(start: Callable[..., Running], tmp_path: Any) -> None:
    server = start(tmp_path / "data", elastic=False)
    try:
        with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {server.admin_key}"}) as client:
            reply = client.post("/workers/any/elastic", json={"enabled": False})
        assert reply.status_code == 400
        assert "TUNEFLEET_ELASTIC" in reply.text
    finally:
        server.stop()
        server.core.close()


def test_metrics_are_a_json_snapshot(root: httpx.Client, admin: httpx.Client, hand: HandWorker) -> None:
    before = root.get("/metrics", headers={"Accept": "application/json"}).json()
    submit(admin)
    after = root.get("/metrics", headers={"Accept": "application/json"}).json()
    assert after["counters"]["tasks_submitted"] == before["counters"]["tasks_submitted"] + 1
    assert set(after["task_timings"]) == {"overall", "inference", "training", "other"}
    assert "by-hand" in after["workers"]["workers"]
    assert after["active_workers_count"] == 1
    refused = root.get("/metrics", headers={"Accept": "text/html"})
    assert (refused.status_code, "application/json" in refused.text) == (406, True)


def test_energy_is_what_the_workers_gpus_have_used_and_null_if_none_tells(root: httpx.Client, hand: HandWorker) -> None:
    names = ("estimated_energy_kwh", "gpu_energy_kwh", "cpu_energy_kwh")

    def told() -> tuple[list[Any], list[Any], int]:
        found = root.get("/metrics", headers={"Accept": "application/json"}).json()["workers"]
        own = found["workers"]["by-hand"]
        totals = found["totals"]
        return [own[name] for name in names], [totals[name] for name in names], totals["workers_with_energy"]

    load = {"memory_free_bytes": 1, "disk_free_bytes": 1, "gpus": [{"uuid": "GPU-0"}]}
    hand.exchange(load=load)
    assert told() == ([None] * 3, [None] * 3, 0)
    hand.exchange(load=load | {"gpu_energy_j": 1.8e6})
    assert told() == ([0.5, 0.5, None], [0.5, 0.5, None], 1)


def test_cordon_drain_and_uncordon_are_routes(admin: httpx.Client, hand: HandWorker) -> None:
    for verb, expected in (("cordon", (True, False)), ("drain", (True, True)), ("uncordon", (False, False))):
        shown = admin.post(f"/workers/by-hand/{verb}").json()
        assert (shown["cordoned"], shown["draining"]) == expected
    assert admin.post("/workers/nobody/cordon").status_code == 404
