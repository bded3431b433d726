"""One machine's agent: jobs run, pause, resume and survive it, and its backend hears of all in order."""

from __future__ import annotations

import json
import os
from pathlib import Path

import httpx
import psutil
import pytest

from tests.integration.agent.conftest import AgentProcess, StubBackend, plain, request, until
from tunefleet.runtime import locks

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(180)]


@pytest.mark.story
def test_a_job_runs_pauses_and_resumes_and_the_backend_hears_it_in_order(
    agent: AgentProcess, backend: StubBackend
) -> None:
    body = request("story", max_steps=160, save_steps=1000)
    body["config"]["training"]["dreams"] = 7
    answer = agent.post("/api/training/execute", body)
    assert (answer.status_code, answer.json()) == (200, {"job_id": "story", "success": True})
    agent.until_step("story", 5)

    trainer = psutil.Process(agent.trainer("story"))
    assert agent.get("/health").json()["active_jobs"] == 1
    assert agent.post("/api/training/pause/story").json() == {"success": True, "message": "Training pause requested"}
    paused = agent.until_status("story", "paused")
    assert not trainer.is_running() or trainer.status() == psutil.STATUS_ZOMBIE
    # Its keeper writes down the end a moment before it goes, too.
    until(lambda: not locks.is_held(agent.job_folder("story") / "lock"), "the process is gone, so its GPU is free", 5)
    assert paused["resumable"]
    assert 5 <= paused["current_step"] < 160
    assert any("dreams" in sentence for sentence in paused["warnings"]), "what had no effect is said"
    assert any("config.training.dreams" in line for line in agent.job_log("story"))
    assert agent.post("/api/training/pause/story").status_code == 400

    # While it is away nothing is lost, and what happened meanwhile arrives in order.
    until(lambda: backend.statuses("story") == ["running", "paused"], "the pause is told")
    backend.down()
    assert agent.post("/api/training/resume/story", {"action": "resume"}).json()["success"]
    assert agent.until_status("story", "completed")["progress"] == 100.0
    assert agent.post("/api/training/resume/story").status_code == 400
    backend.up()
    until(lambda: backend.statuses("story")[-1] == "completed", "the end is told")

    points = backend.taken("story", "metrics")
    train = [point["step"] for point in points if "train_loss" in point]
    assert train == list(range(1, 161)), "no gap, nothing twice"
    assert all("learning_rate" in point for point in points if "train_loss" in point)
    assert backend.statuses("story") == ["running", "paused", "running", "completed"]
    told = backend.taken("story", "status")[1]
    assert told["step"] == paused["current_step"]
    assert told["checkpoint"] == f"checkpoint-{paused['current_step']}"
    written = (agent.job_folder("story") / "train.log").read_text().splitlines()
    assert len(backend.log("story")) == len(written), "each line once"
    assert plain(backend.log("story")[-1]) in written[-1]
    tokens = {call.headers["authorization"] for call in backend.calls if "/story/" in call.path}
    assert tokens == {"Bearer token-of-story"}
    assert (agent.job_folder("story") / "final" / "adapter_model.safetensors").is_file()


def test_what_is_read_of_a_job(agent: AgentProcess, backend: StubBackend) -> None:
    body = request("readable", eval_steps=4, save_steps=4, load_best_model_at_end=True)
    agent.post("/api/training/execute", body)
    done = agent.until_status("readable", "completed")
    assert done["eval_loss"] is not None
    assert done["loss"] is not None
    assert done["started_at"] < done["completed_at"]

    points = agent.get("/api/training/metrics/readable").json()["metrics"]
    held_out = [point for point in points if "eval_loss" in point]
    assert {point["step"] for point in held_out} >= {4, 8}
    assert all(point["eval_perplexity"] == point["perplexity"] for point in held_out)
    until(lambda: "completed" in backend.statuses("readable"), "all is told")
    sent = [point for point in backend.taken("readable", "metrics") if "eval_loss" in point]
    assert all(point["perplexity"] == point["eval_perplexity"] for point in sent)

    found = agent.get("/api/training/checkpoints/readable").json()
    assert [one["step"] for one in found["checkpoints"]] == [4, 8]
    assert [one["is_latest"] for one in found["checkpoints"]] == [False, True]
    best = min(found["checkpoints"], key=lambda one: one["eval_loss"])
    assert found["best_checkpoint"] == best
    assert best["is_best"]
    assert best["size_bytes"] > 0
    assert Path(best["path"]).is_dir()

    page = agent.get("/api/training/logs/readable?limit=3&offset=-3").json()
    everything = agent.job_log("readable")
    assert page == {"logs": everything[-3:], "total_lines": len(everything), "offset": len(everything) - 3, "limit": 3}
    assert agent.get("/api/training/logs/readable?limit=2&offset=1").json()["logs"] == everything[1:3]

    with httpx.stream("GET", f"http://127.0.0.1:{agent.port}/api/training/stream/readable", timeout=20) as stream:
        lines = [line for line in stream.iter_lines() if line]
    kinds = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert kinds.count("metric") == len(points)
    assert kinds[0] == "status"
    logged = [json.loads(line[6:])["lines"] for line in lines if line.startswith('data: {"lines"')]
    assert [line for piece in logged for line in piece] == everything
    assert agent.get("/api/training/readable/errors").json()["error_summary"] is None
    for path in ("status", "logs", "metrics", "checkpoints", "stream"):
        assert agent.get(f"/api/training/{path}/nobody").status_code == 404
    assert agent.post("/api/training/cancel/nobody").status_code == 400


def test_a_training_on_pairs_runs_and_its_rewards_are_told(agent: AgentProcess, backend: StubBackend) -> None:
    rows = [{"prompt": f"{n} + {n}?", "chosen": f"It is {2 * n}.", "rejected": "Who knows?"} for n in range(12)]
    (agent.folder / "datasets" / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    of_pairs = {"method": "dpo", "beta": 0.2, "max_prompt_length": 32, "max_steps": 4, "eval_steps": 2, "packing": True}
    body = request("pairs", "pairs.jsonl", **of_pairs)
    body["config"]["data"] = {"dataset_format": "preference", "eval_split": 0.25}
    assert agent.post("/api/training/execute", body).status_code == 200
    done = agent.until_status("pairs", "completed")
    assert (done["current_step"], done["progress"]) == (4, 100.0)
    assert done["warnings"] == ["config.training.packing has no effect with the method dpo."]
    assert (agent.job_folder("pairs") / "final" / "adapter_model.safetensors").is_file()

    until(lambda: backend.statuses("pairs") == ["running", "completed"], "all is told")
    points = backend.taken("pairs", "metrics")
    train = [point for point in points if "train_loss" in point]
    assert [point["step"] for point in train] == [1, 2, 3, 4]
    assert all(0 <= point["rewards/accuracies"] <= 1 and "rewards/margins" in point for point in train)
    held_out = [point for point in points if "eval_loss" in point]
    assert {point["step"] for point in held_out} >= {2, 4}
    assert all(0 <= point["eval_rewards/accuracies"] <= 1 for point in held_out)
    assert train[-1]["rewards/margins"] != 0, "it has learnt something"
    numbers = [value for point in points for name, value in point.items() if name != "timestamp"]
    assert all(isinstance(value, int | float) for value in numbers)
    assert not any("perplexity" in name for point in points for name in point), "no exponential of such a loss"
    shown = [point for point in agent.get("/api/training/metrics/pairs").json()["metrics"] if "train_loss" in point]
    assert [point["rewards/margins"] for point in shown] == [point["rewards/margins"] for point in train]


def test_a_failed_job_says_what_was_wrong(agent: AgentProcess, backend: StubBackend) -> None:
    (agent.folder / "datasets" / "odd.jsonl").write_text('{"question": "?"}\n' * 10)
    agent.post("/api/training/execute", request("odd", "odd.jsonl"))
    failed = agent.until_status("odd", "failed")
    assert "odd.jsonl" in failed["error"]
    found = agent.get("/api/training/odd/errors").json()
    assert found["error_summary"] == failed["error"]
    assert found["error_count"] >= 1
    assert found["traceback"]["exception_type"].endswith("DataError")
    until(lambda: "failed" in backend.statuses("odd"), "the end is told")
    assert backend.taken("odd", "status")[-1]["error"] == failed["error"]


def test_a_killed_agent_loses_no_job_and_no_place_in_the_queue(agent: AgentProcess, backend: StubBackend) -> None:
    agent.post("/api/training/execute", request("first", max_steps=2000, save_steps=5000))
    agent.post("/api/training/execute", request("second"))
    agent.post("/api/training/execute", request("third"))
    agent.until_step("first", 3)
    waiting = agent.get("/api/training/queue").json()
    assert waiting["running_jobs"] == ["first"]
    assert waiting["queued_jobs"] == ["second", "third"]
    assert agent.status("third")["queue_position"] == 2
    trainer = agent.trainer("first")

    agent.kill()
    os.kill(trainer, 0)
    agent.start()
    assert agent.trainer("first") == trainer
    assert agent.status("first")["status"] == "running", "it is adopted"
    assert agent.get("/api/training/queue").json()["queued_jobs"] == ["second", "third"]
    again = agent.post("/api/training/execute", request("first"))
    assert again.status_code == 409

    assert agent.post("/api/training/cancel/third").json()["success"]
    assert agent.status("third")["status"] == "cancelled"
    assert agent.post("/api/training/cancel/first").json()["message"] == "Training cancellation requested"
    agent.until_status("first", "cancelled")
    agent.until_status("second", "completed")
    until(lambda: "completed" in backend.statuses("second"), "the end is told")
    assert backend.statuses("first") == ["running", "cancelled"]
    steps = [point["step"] for point in backend.taken("first", "metrics") if "train_loss" in point]
    told_once = list(dict.fromkeys(steps))
    assert told_once == list(range(1, len(told_once) + 1)), "no gap; what was on its way at the kill is told again"
    assert not (agent.job_folder("third") / "job.json").exists(), "it was never started"
    assert any("first" in line and "step" in line for line in agent.out().splitlines()), "a progress line"
