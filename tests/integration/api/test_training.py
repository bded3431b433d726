"""Jobs that report in the training-agent protocol: stored once, in order of their states, readable like any task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.integration.api.support import HandWorker, Running, is_problem, submit, until
from tests.integration.api.training import agent, client, close_clients, register, train
from tunefleet.orchestrator.telemetry import journal_limits


@pytest.fixture
def person(running: Running) -> Iterator[httpx.Client]:
    yield client(running, running.admin_key)
    close_clients()


@pytest.fixture
def job(running: Running, person: httpx.Client, request: pytest.FixtureRequest) -> tuple[str, httpx.Client]:
    """A registered job, and a client that reports for it."""
    job_id = f"exec_{request.node.name[:60].replace('[', '-').replace(']', '')}"
    return job_id, client(running, register(person, job_id, total_steps=20))


def put(http: httpx.Client, job_id: str, **point: Any) -> None:
    reply = http.put(f"/local/{job_id}/metrics", json=point)
    assert reply.json() == {"success": True, "count": 1}, reply.text


def patch(http: httpx.Client, job_id: str, status: str, **more: Any) -> httpx.Response:
    return http.patch(f"/local/{job_id}/status", json={"status": status, **more})


def test_points_are_stored_once_and_read_in_both_worlds(
    job: tuple[str, httpx.Client], person: httpx.Client, admin: httpx.Client
) -> None:
    job_id, http = job
    assert person.get(f"/local/{job_id}/status").json()["status"] == "pending"
    put(http, job_id, step=0, epoch=0, train_loss=4.0, total_steps=20)
    assert person.get(f"/local/{job_id}/status").json()["status"] == "running"
    for step in range(1, 11):
        put(http, job_id, step=step, epoch=step / 10, train_loss=4.0 - step / 10, learning_rate=1e-4)
    put(http, job_id, step=5, epoch=0.5, train_loss=3.5, learning_rate=1e-4)
    put(http, job_id, step=10, epoch=1.0, eval_loss=2.0, perplexity=7.5)
    put(http, job_id, step=10, epoch=1.0, eval_loss=2.0, eval_perplexity=7.5)
    stored = admin.get(f"/tasks/{job_id}/metrics").json()
    assert [point["step"] for point in stored["points"]] == list(range(11))
    assert stored["points"][10]["values"] == {
        "loss": 3.0, "learning_rate": 1e-4, "eval_loss": 2.0, "eval_perplexity": 7.5,
    }  # fmt: skip
    rows = person.get(f"/local/{job_id}/metrics").json()["metrics"]
    assert (rows[0]["step"], rows[0]["train_loss"]) == (0, 4.0)
    assert rows[10]["perplexity"] == rows[10]["eval_perplexity"] == 7.5
    # What a repetition left out once is not stored twice underneath either.
    cursor = admin.get(f"/tasks/{job_id}").json()["progress"]
    assert (cursor["step"], cursor["max_steps"]) == (10, 20)

    batch = [{"step": step, "train_loss": 3.0} for step in range(11, 15)] + [{"step": 15, "loss": float("nan")}]
    reply = http.post("/local/metrics", content=json.dumps({"job_id": job_id, "metrics": batch}))
    assert reply.json() == {"success": True, "count": 5}
    page = person.get("/local/metrics", params={"job_id": job_id, "limit": 2, "offset": 14}).json()
    assert page["total"] == 16
    assert [(row["step"], row["train_loss"]) for row in page["metrics"]] == [(14, 3.0), (15, "NaN")]
    assert http.post(f"/jobs/{job_id}/metrics", json={"step": 16, "loss": 2.0}).status_code == 200
    bodies: list[Any] = [
        {"epoch": 1}, {"step": "many"}, {"step": -1}, [],
        {"job_id": job_id, "metrics": [{"step": 1}] * 5001},
    ]  # fmt: skip
    for body in bodies[:4]:
        assert http.put(f"/local/{job_id}/metrics", json=body).status_code == 400, body
    refused = http.post("/local/metrics", json=bodies[4])
    assert refused.status_code == 400
    assert refused.json()["error"]


def test_points_of_a_long_job_are_thinned(
    running: Running, job: tuple[str, httpx.Client], admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.core, "settings", running.core.settings.model_copy(update={"series_points": 1000}))
    job_id, http = job
    for first in range(0, 3000, 500):
        points = [{"step": step, "epoch": 0, "train_loss": 1.0} for step in range(first, first + 500)]
        assert http.post("/local/metrics", json={"job_id": job_id, "metrics": points}).status_code == 200
    steps = [point["step"] for point in admin.get(f"/tasks/{job_id}/metrics").json()["points"]]
    assert len(steps) < 1000
    assert (steps[0], steps[-250:]) == (0, list(range(2750, 3000)))


def test_status_object_tells_where_a_job_stands(
    running: Running, job: tuple[str, httpx.Client], person: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, http = job
    for step in range(1, 13):
        put(http, job_id, step=step, epoch=step / 4, train_loss=2.0 + step / 10, gpu_memory_allocated_gb=7.5)
        if step % 4 == 0:
            put(http, job_id, step=step, epoch=step / 4, eval_loss=[1.9, 1.7, 1.8][step // 4 - 1])
    found = person.get(f"/local/{job_id}/status").json()
    expected = {
        "status": "running", "current_step": 12, "total_steps": 20, "progress": 60, "loss": 3.2, "eval_loss": 1.8,
        "best_eval_loss": 1.7, "best_step": 8, "best_epoch": 2.0, "epochs_without_improvement": 1,
        "loss_trend": "degrading", "gpu_memory_allocated_gb": 7.5, "model_display_name": "model", "warning": None,
        "best_checkpoint_path": None, "grad_norm": None, "completed_at": None,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert found["perplexity"] == found["eval_perplexity"] == pytest.approx(6.0496, abs=1e-3)
    assert found["elapsed_seconds"] >= 0
    assert found["remaining_seconds"] >= 0
    wall = running.core.clock.wall
    monkeypatch.setattr(running.core, "clock", type(running.core.clock)(lambda: wall() + 301, lambda: 0.0))
    assert "No reports for 30" in person.get(f"/local/{job_id}/status").json()["warning"]


def test_states_follow_the_lifecycle(job: tuple[str, httpx.Client], person: httpx.Client, admin: httpx.Client) -> None:
    job_id, http = job
    assert patch(http, job_id, "running").json()["status"] == "running"
    assert patch(http, job_id, "running").status_code == 200
    assert patch(http, job_id, "paused", step=3, checkpoint="checkpoint-3").json()["status"] == "paused"
    refused = is_problem(patch(http, job_id, "completed"), 409, "conflict")
    assert "paused" in refused["detail"]
    assert "completed" in refused["error"]
    assert patch(http, job_id, "running").json()["status"] == "running"
    assert patch(http, job_id, "running", step=3).json()["status"] == "running"
    assert patch(http, job_id, "paused").json()["status"] == "paused"
    assert patch(http, job_id, "running").json()["status"] == "running"
    assert patch(http, job_id, "completed").json()["status"] == "completed"
    assert patch(http, job_id, "completed").status_code == 200
    assert patch(http, job_id, "failed").status_code == 409
    assert patch(http, job_id, "queued").status_code == 400
    task = admin.get(f"/tasks/{job_id}").json()
    assert (task["status"], task["reason"], task["attempts"]) == ("completed", "finished", 1)
    assert person.get(f"/local/{job_id}/status").json()["completed_at"]
    # Agents exist that send their log only now.
    assert http.post(f"/local/{job_id}/logs", json={"logs": ["late"]}).json()["total_logs"] == 1


def test_failure_is_classified_and_explained(
    job: tuple[str, httpx.Client], person: httpx.Client, admin: httpx.Client, running: Running
) -> None:
    job_id, http = job
    settings = {"training": {"batch_size": 8, "gradient_accumulation_steps": 2, "gradient_checkpointing": True}}
    register(person, job_id, config=settings)
    error = (
        'Traceback (most recent call last):\n  File "train.py", line 7, in training_step\n    loss.backward()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    )
    assert person.get(f"/local/{job_id}/analyze-failure").status_code == 400
    assert patch(http, job_id, "failed", error=error).json()["status"] == "failed"
    assert admin.get(f"/tasks/{job_id}").json()["reason"] == "out_of_memory"
    analysis = person.get(f"/local/{job_id}/analyze-failure").json()["analysis"]
    assert (analysis["error_type"], analysis["error_phase"], analysis["confidence"]) == (
        "oom_training", "training", "high",
    )  # fmt: skip
    changes = {each["field"]: (each["current_value"], each["suggested_value"]) for each in analysis["suggestions"]}
    assert changes == {"batch_size": (8, 4), "gradient_accumulation_steps": (2, 4)}
    found = person.get(f"/local/{job_id}/errors").json()
    assert found["error_summary"].startswith("torch.OutOfMemoryError")
    assert (found["error_count"], found["unique_error_count"]) == (1, 1)
    assert found["traceback"]["frames"] == [
        {"file": "train.py", "line": 7, "function": "training_step", "code": "loss.backward()"}
    ]
    assert found["traceback"]["exception_type"] == "torch.OutOfMemoryError"

    wanted = {"checkpoint_path": "runs/checkpoint-4", "config_adjustments": {"batch_size": 4}}
    again = person.post(f"/local/{job_id}/resume", json=wanted).json()
    assert again["job_id"].startswith(f"{job_id}-resume-")
    assert again["resumed_from"] == job_id
    status = person.get(f"/local/{again['job_id']}/status").json()
    assert (status["resumed_from_job_id"], status["resume_from_checkpoint"]) == (job_id, "runs/checkpoint-4")
    put(client(running, again["job_token"]), again["job_id"], step=5, train_loss=1.0)
    assert person.post(f"/local/{again['job_id']}/resume", json={}).status_code == 400


def test_log_lines_have_numbers(job: tuple[str, httpx.Client], person: httpx.Client, admin: httpx.Client) -> None:
    job_id, http = job

    def send(lines: list[str], **more: Any) -> httpx.Response:
        return http.post(f"/local/{job_id}/logs", json={"logs": lines, **more})

    assert send(["one", "two"], offset=0).json() == {"success": True, "logs_appended": 2, "total_logs": 2}
    assert send(["one", "two", "thr\nee"], offset=0).json()["logs_appended"] == 1
    assert send(["four https://user:secret@host/x"]).json()["total_logs"] == 4
    assert is_problem(send(["?"], offset=9), 409, "offset_conflict")["cursor"] == 4
    page = person.get(f"/local/{job_id}/logs", params={"limit": 2, "offset": 1}).json()
    assert page == {"logs": ["two", "thr ee"], "total_lines": 4, "offset": 1, "limit": 2}
    assert "secret" not in person.get(f"/local/{job_id}/logs", params={"offset": -1}).json()["logs"][0]
    assert admin.get(f"/tasks/{job_id}/log").json()["text"].startswith("one\ntwo\nthr ee\n")
    many = [f"line {number}" for number in range(2000)]
    assert send(many).json()["total_logs"] == 2004
    tail = person.get(f"/local/{job_id}/logs", params={"offset": -3}).json()
    assert (tail["logs"], tail["offset"]) == (many[-3:], 2001)


def test_predictions_are_kept_once_and_streamed(job: tuple[str, httpx.Client], person: httpx.Client) -> None:
    job_id, http = job
    items = [
        {"step": step, "epoch": step / 10, "sample_index": 0, "prompt": "2+2", "prediction": text, "ground_truth": "4"}
        for step, text in ((10, "5"), (20, "4"))
    ]
    body = {"job_id": job_id, "predictions": items}
    assert http.post("/local/predictions", json=body).json()["count"] == 2
    assert http.post("/local/predictions", json=body).status_code == 200
    found = person.get(f"/predictions/{job_id}").json()
    assert (found["total_count"], found["epoch_count"]) == (2, 2)
    assert [row["exact_match"] for row in found["predictions"]] == [False, True]
    assert person.get(f"/predictions/{job_id}", params={"epoch": 2.0}).json()["predictions"][0]["step"] == 20
    assert [row["prediction_count"] for row in person.get(f"/predictions/{job_id}/epochs").json()["epochs"]] == [1, 1]
    trends = person.get(f"/predictions/{job_id}/trends").json()["trends"]
    assert [row["avg_exact_match"] for row in trends] == [0.0, 1.0]
    patch(http, job_id, "completed")
    events = person.get(f"/predictions/{job_id}/stream", headers={"Last-Event-ID": "1:0"}).text.split("\r\n\r\n")
    kinds = [line for event in events for line in event.splitlines() if line.startswith("event:")]
    assert kinds == ["event: prediction", "event: eos"]


def test_of_predictions_so_many_are_kept(
    job: tuple[str, httpx.Client], person: httpx.Client, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, http = job
    monkeypatch.setattr(journal_limits, "RECORDS", 3)
    for step in range(1, 8):
        one = {"step": step, "epoch": 0, "sample_index": 0, "prompt": "2+2", "prediction": "4"}
        assert http.post("/local/predictions", json={"job_id": job_id, "predictions": [one]}).status_code == 200
    assert person.get(f"/predictions/{job_id}").json()["total_count"] == 3
    told = admin.get("/events", params={"task_id": job_id, "kinds": "task.message"}).text
    assert told.count("journal.full") == 1


def test_job_is_the_callers_and_its_token_is_for_it_alone(
    running: Running, person: httpx.Client, as_role: Callable[[str], httpx.Client], admin: httpx.Client
) -> None:
    anonymous = httpx.post(f"{running.url}/api/training/local/jobs", json={"job_id": "mine-1", "user_id": "eve"})
    assert anonymous.status_code == 401
    assert anonymous.json()["error"]
    member = as_role("member").headers["Authorization"].removeprefix("Bearer ")
    eve = client(running, member)
    mine = register(person, "mine-1", user_id="a-member")
    answer = person.post("/local/jobs", json={"job_id": "mine-1", "model_name": "other"}).json()
    assert (answer["job_token"], answer["user_id"]) == (mine, "admin")
    taken = eve.post("/local/jobs", json={"job_id": "mine-1", "user_id": "admin"})
    assert taken.status_code == 403
    assert "job_token" not in taken.text
    hers = client(running, register(eve, "hers-1", user_id="admin"))
    assert eve.get("/local/jobs").json()["total"] == 1
    assert eve.get("/local/jobs").json()["jobs"][0]["user_id"] == "a member"
    assert hers.put("/local/mine-1/metrics", json={"step": 1}).status_code == 403
    assert patch(hers, "mine-1", "failed").status_code == 403
    assert hers.post("/local/metrics", json={"job_id": "mine-1", "metrics": []}).status_code == 403
    assert person.put("/local/mine-1/metrics", json={"step": 1}).status_code == 403
    assert eve.post("/local/mine-1/control", json={"action": "cancel"}).status_code == 403
    task_id = submit(admin)
    assert person.post("/local/jobs", json={"job_id": task_id}).status_code == 409
    assert person.post("/local/jobs", json={"job_id": "../x"}).status_code == 400
    keys = {"X-Workspace-API-Key": member}
    assert httpx.get(f"{running.url}/api/training/jobs", headers=keys).json()["count"] == 1
    for path in ("execute", "refresh-token", "local"):
        assert person.post(f"/{path}", json={}).status_code == 404, path
    assert person.get("/checkpoints/mine-1").status_code == 404


def test_a_job_may_be_registered_under_the_name_of_a_removed_one_and_be_removed_too(
    running: Running, person: httpx.Client, admin: httpx.Client
) -> None:
    for _ in range(2):
        assert patch(client(running, register(person, "again-1")), "again-1", "completed").status_code == 200
        assert admin.delete("/tasks/again-1").status_code == 204
    assert admin.get("/tasks/again-1").status_code == 404


def test_registered_job_is_never_placed_and_cannot_be_asked(
    running: Running, person: httpx.Client, admin: httpx.Client, hand: HandWorker
) -> None:
    http = client(running, register(person, "far-1"))
    assert hand.exchange(want={"light": 5})["offers"] == []
    assert admin.get("/tasks/far-1").json()["status"] == "dispatched"
    put(http, "far-1", step=1, train_loss=1.0)
    assert person.post("/local/far-1/control", json={"action": "pause"}).status_code == 409
    assert admin.post("/tasks/far-1/pause").status_code == 409
    answer = person.patch("/local/far-1/update-params", json={"learning_rate": 1e-5, "batch_size": 4}).json()
    assert set(answer["fields"]) == {"learning_rate", "batch_size"}
    assert "resumed" in answer["fields"]["learning_rate"]
    patch(http, "far-1", "paused")
    assert admin.post("/tasks/far-1/resume").status_code == 409
    assert person.post("/local/far-1/control", json={"action": "cancel"}).json()["result"]["status"] == "cancelled"
    again = person.post("/local/far-1/resume", json={}).json()
    assert again["job_token"]
    assert person.patch("/local/far-1/update-params", json={"learning_rate": 1e-5}).status_code == 409
    assert person.patch(f"/local/{again['job_id']}/update-params", json={"dropout": 1}).status_code == 400
    assert admin.delete("/tasks/far-1").status_code == 204


def test_running_job_of_an_agent_takes_what_can_be_taken_now(
    running: Running, person: httpx.Client, admin: httpx.Client
) -> None:
    lab = agent(running, running.worker_key, "20")
    job_id = train(admin, "params")
    http = lab.take(job_id)
    answer = person.patch(f"/local/{job_id}/update-params", json={"learning_rate": 1e-5, "batch_size": 1}).json()
    assert answer["fields"]["learning_rate"] == "at the end of the running step"
    assert "resumed" in answer["fields"]["batch_size"]
    assert len(person.get(f"/local/{job_id}/status").json()["parameter_updates"]) == 1
    patch(http, job_id, "failed", error="KeyError: 'text'")
    assert person.post(f"/local/{job_id}/resume", json={"checkpoint_path": "elsewhere"}).status_code == 400
    assert person.post(f"/local/{job_id}/resume", json={"config_adjustments": {"tempo": 1}}).status_code == 400
    # No checkpoint is known of it: that is said, and nothing is started.
    assert person.post(f"/local/{job_id}/resume", json={}).status_code == 409


def test_what_an_earlier_attempt_had_reported_beyond_is_superseded(
    running: Running, person: httpx.Client, admin: httpx.Client
) -> None:
    first, second = (agent(running, running.worker_key, name) for name in ("31", "32"))
    job_id = train(admin, "elsewhere", "  retry: {max_attempts: 2, backoff_s: 0}")
    http = first.take(job_id)
    for step in range(1, 7):
        put(http, job_id, step=step, loss=1.0)
    assert patch(http, job_id, "failed", error="torch.OutOfMemoryError: CUDA out of memory").status_code == 200
    until(lambda: admin.get(f"/tasks/{job_id}").json()["status"] == "queued")
    http = second.take(job_id)
    # An evaluation of what was resumed trains no step: the point of step 3 stays.
    put(http, job_id, step=3, eval_loss=2.0)
    put(http, job_id, step=4, loss=0.5)
    points = admin.get(f"/tasks/{job_id}/metrics").json()["points"]
    assert [(point["step"], point["values"]["loss"]) for point in points] == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 0.5)]
    assert points[2]["values"]["eval_loss"] == 2.0


def test_a_claim_whose_answer_was_lost_is_given_up(
    running: Running, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = agent(running, running.worker_key, "33")
    unheard, held = train(admin, "unheard"), train(admin, "held")
    for job_id in (unheard, held):
        assert lab.claim(job_id).status_code == 200

    def stands(job_id: str) -> str:
        return str(admin.get(f"/tasks/{job_id}").json()["status"])

    lab.beat(held)
    assert stands(unheard) == "running", "its answer may be under way still"
    clock = running.core.clock
    later_s = running.core.settings.accept_within_s + 1
    monkeypatch.setattr(running.core, "clock", type(clock)(clock.wall, lambda: clock.monotonic() + later_s))
    lab.beat(held)
    assert (stands(unheard), stands(held)) == ("queued", "running")
    told = admin.get(f"/tasks/{unheard}").json()["attempt_list"]
    assert [(each["state"], each["reason"]) for each in told] == [("void", "worker_lost")]


def test_start_submits_an_earlier_document_again(person: httpx.Client, admin: httpx.Client) -> None:
    first = admin.get(f"/tasks/{train(admin, 'config')}").json()
    admin.post(f"/tasks/{first['id']}/cancel")
    body = {"config_id": first["workflow_id"], "execution_id": "once", "name": "again"}
    started = person.post("/local/start", json=body).json()
    assert started["job_id"] != first["id"]
    assert person.post("/local/start", json=body).json()["job_id"] == started["job_id"]
    made = admin.get(f"/tasks/{started['job_id']}").json()
    assert (made["name"], made["spec"]["training"]) == ("again", first["spec"]["training"])
    other = person.post("/local/start", json={"config_id": "train-config", "dataset_path": "hf://org/data"}).json()
    spec = admin.get(f"/tasks/{other['job_id']}").json()["spec"]
    assert spec["data"]["dataset_name"] == "org/data"
    assert spec["data"].get("path") is None
    assert person.post("/local/start", json={"config_id": "no-such"}).status_code == 404
    for job_id in (started["job_id"], other["job_id"]):
        admin.post(f"/tasks/{job_id}/cancel")
