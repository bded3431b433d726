"""The upload guide's routes over real HTTP: from a job to a version, by clients that know nothing but a URL."""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.integration.api.federated import Worker, arrays, create, values, workers
from tests.integration.api.support import Running, is_problem


def basic(secret: str, user: str = "") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{secret}".encode()).decode()}


def make_job(running: Running, **body: Any) -> dict[str, Any]:
    reply = httpx.post(
        f"{running.url}/api/training/jobs", json={"name": "gsm8k", **body}, headers=basic(running.admin_key)
    )
    assert reply.status_code == 201, reply.text
    made: dict[str, Any] = reply.json()
    return made


def test_a_job_of_the_guides_goes_from_its_creation_to_a_version_and_on(running: Running, tmp_path: Path) -> None:
    made = make_job(
        running,
        model_type="builtin:tiny",
        config={"lora_rank": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]},
        fed_config={"aggregation_algorithm": "FedAvg", "sync_interval": 50, "min_workers": 2, "max_workers": 4},
    )
    job, token = made["job"], made["token"]
    assert (job["status"], job["version"], job["fedConfig"]["sync_interval"]) == ("queued", 0, 50)
    assert token.startswith(f"{job['jobId']}.")
    assert made["callbackSecret"].startswith("whsec_")
    # A whole number and an id name the same job; workers may be numbers and names.
    one = Worker(running, token, str(job["id"]), "1", tmp_path)
    two = Worker(running, token, job["jobId"], "lab-2", tmp_path)
    assert one.poll().status_code == 404
    first = one.upload(arrays(1), numExamples=30, beside={"tokenizer.json": b"{}", "notes.txt": b"hello"})
    assert first == {**first, "success": True, "shouldAggregate": False, "round": 1, "version": 0, "warning": None}
    assert isinstance(first["adapterId"], int)
    second = two.upload(arrays(2), numExamples=10)
    assert second["shouldAggregate"] is True
    said = one.await_version(1)
    assert said["downloadUrl"].startswith(f"{running.url}/api/training/checkpoints/{one.job}/download?version=1&")
    assert said["path"] == f"/api/training/checkpoints/{one.job}/download?version=1"
    assert said["checkpoint"]["contributors"] == ["1", "lab-2"]
    assert (said["round"], said["checkpoint"]["step"]) == (1, 100)
    assert hashlib.sha256(httpx.get(said["downloadUrl"], timeout=60).content).hexdigest() == said["sha256"]
    files = one.fetch(said)
    assert set(files) == {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json"}
    got, left, right = values(tmp_path, files["adapter_model.safetensors"]), arrays(1), arrays(2)
    for name, value in got.items():
        np.testing.assert_allclose(value, 0.75 * left[name] + 0.25 * right[name], rtol=1e-5, atol=1e-6)
    progress = one.client.get(f"/api/training/jobs/{one.job}/progress").json()
    assert [worker["workerId"] for worker in progress["workers"]] == ["1", "lab-2"]
    assert (progress["job"]["status"], progress["stats"]["totalGradientUpdates"]) == ("running", 2)
    shown = two.client.get(f"/api/training/jobs/{two.job}").json()
    assert (shown["job"]["version"], shown["job"]["modelType"]) == (1, "builtin:tiny")
    weights = two.client.get(f"/api/training/jobs/{two.job}/checkpoint")
    assert weights.content == files["adapter_model.safetensors"]
    one.client.close()
    two.client.close()


def test_a_poll_knows_what_the_asker_has_and_may_wait(running: Running, admin: httpx.Client, tmp_path: Path) -> None:
    made = create(admin, min_workers=1)
    with workers(running, made, tmp_path, "1") as (one,):
        begun = time.monotonic()
        assert one.poll(after=0, wait_s=0.2).status_code == 204
        assert time.monotonic() - begun >= 0.2
        assert one.poll(after=0).status_code == 204
        found: list[httpx.Response] = []
        waiting = threading.Thread(target=lambda: found.append(one.poll(after=0, wait_s=50)))
        waiting.start()
        with workers(running, made, tmp_path, "2") as (two,):
            two.upload(arrays(1))
        waiting.join(60)
        (reply,) = found
        assert (reply.status_code, reply.json()["version"]) == (200, 1)
        etag = reply.headers["etag"]
        assert one.client.get(reply.url.path, headers={"If-None-Match": etag}).status_code == 304
        assert one.poll(after=1).status_code == 204
        link = httpx.get(reply.json()["downloadUrl"], headers={"Range": "bytes=0-1"})
        assert (link.status_code, link.content) == (206, b"\x1f\x8b")
        assert "attachment" in link.headers["content-disposition"]
        assert f"checkpoint-job-{made['id']}-v1.tar.gz" in link.headers["content-disposition"]


def test_a_round_is_aggregated_when_somebody_asks(running: Running, admin: httpx.Client, tmp_path: Path) -> None:
    made = create(admin, min_workers=3)
    with workers(running, made, tmp_path, "1", "2") as (one, two):
        where = f"/api/training/adapters/{made['number']}/100/aggregate"
        one.upload(arrays(1))
        refused = one.client.post(where)
        assert refused.status_code == 400
        assert "1 updates" in refused.json()["message"]
        two.upload(arrays(2))
        done = one.client.post(where)
        assert done.status_code == 200, done.text
        assert (done.json()["success"], done.json()["version"]) == (True, 1)
        assert one.client.get(done.json()["checkpointPath"]).status_code == 200


def test_a_paused_federation_keeps_updates_and_an_ended_one_tells_the_worker_to_stop(
    running: Running, admin: httpx.Client, tmp_path: Path
) -> None:
    made = create(admin, min_workers=1)
    with workers(running, made, tmp_path, "1") as (one,):
        admin_url = f"{running.url}/api/training/jobs/{made['number']}"
        paused = httpx.post(f"{admin_url}/pause", headers=basic(running.admin_key))
        assert (paused.status_code, paused.json()["job"]["status"]) == (200, "paused")
        kept = one.upload(arrays(1))
        assert kept["shouldAggregate"] is False
        assert "paused" in kept["warning"]
        assert one.poll().status_code == 404
        assert httpx.post(f"{admin_url}/start", headers=basic(running.admin_key)).json()["job"]["status"] == "running"
        one.await_version(1)
        assert admin.post(f"/federations/{made['id']}/cancel").json()["status"] == "cancelled"
        late = one.upload(arrays(2))
        assert (late["adapterId"], late["shouldAggregate"], late["version"]) == (0, False, 1)
        assert "cancelled" in late["warning"]
        assert one.poll().json()["version"] == 1, "its versions stay"
        assert (
            one.client.post(admin_url.removeprefix(running.url) + "/claim-chunk", json={"workerId": 1}).status_code
            == 410
        )


def test_gradients_are_sent_elsewhere_by_name(running: Running) -> None:
    reply = httpx.post(
        f"{running.url}/api/training/gradients",
        json={"jobId": 1, "workerId": 1, "step": 1, "gradients": {"layer": [0.0] * 400_000}, "numExamples": 1},
        headers=basic(running.admin_key),
    )
    assert len(reply.request.content) > 1 << 20, "more than a document may have"
    assert is_problem(reply, 410, "gone")
    assert "/api/training/adapters/{jobId}/{workerId}/{step}" in reply.json()["message"]


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"aggregation_algorithm": "fedmagic"}, "strategy.name"),
        ({"min_workers": 3, "max_workers": 2}, "max_workers"),
        ({"sync_intervall": 10}, "sync_intervall"),
        ({"aggregation_algorithm": "fedavg", "mu": 0.1}, "strategy.mu"),
    ],
)
def test_a_job_that_cannot_be_is_refused_with_the_option(running: Running, config: dict[str, Any], fault: str) -> None:
    reply = httpx.post(
        f"{running.url}/api/training/jobs",
        json={"name": "x", "fedConfig": config},
        headers=basic(running.admin_key),
    )
    assert reply.status_code == 422, reply.text
    assert fault in [each["path"] for each in reply.json()["faults"]]


def test_options_of_the_guide_become_ours(running: Running, admin: httpx.Client) -> None:
    made = make_job(
        running,
        fed_config={"aggregationAlgorithm": "FedProx", "mu": 0.2, "syncInterval": 20, "minWorkers": 4, "rounds": 3},
    )
    spec = admin.get(f"/federations/{made['job']['id']}").json()["spec"]
    assert spec["strategy"]["name"] == "fedprox"
    assert (spec["strategy"]["mu"], spec["sync_every_steps"], spec["min_workers"], spec["rounds"]) == (0.2, 20, 4, 3)


def test_the_agents_list_of_jobs_stays_what_it_is(running: Running, admin: httpx.Client) -> None:
    create(admin, name="not a task")
    listed = httpx.get(f"{running.url}/api/training/jobs", headers={"Authorization": f"Bearer {running.admin_key}"})
    assert "not a task" not in [job["name"] for job in listed.json()["jobs"]]
