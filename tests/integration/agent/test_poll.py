"""Jobs for a machine that nobody can reach: from our own server, and from a backend that knows the document only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.integration.agent.conftest import CONFIG, AgentProcess, Call, StubBackend, until, write_rows
from tests.libraries import required
from tunefleet.client import Client
from tunefleet.runtime import locks

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[tuple[str, Path]]:
    """Our own server in a process of its own: URL and data folder."""
    data, port = tmp_path_factory.mktemp("data"), free_port()
    with (data / "server.out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tunefleet.api", "--data", str(data), "--port", str(port)],
            cwd=data, env={**os.environ, "TUNEFLEET_HOME": str(data / "home")}, stdout=out, stderr=out,
        )  # fmt: skip
    until((data / "keys" / "worker.key").exists, "the server has made its keys")
    yield f"http://127.0.0.1:{port}", data
    process.terminate()
    process.wait(15)


@pytest.mark.torch
@pytest.mark.timeout(180)
def test_a_task_of_our_server_is_claimed_steered_and_delivered(
    tmp_path: Path, server: tuple[str, Path], free_port: Callable[[], int]
) -> None:
    required("torch")
    url, data = server
    write_rows(tmp_path)
    env = {
        "BACKEND_URL": url,
        "API_KEY": (data / "keys" / "worker.key").read_text().strip(),
        "TUNEFLEET_HOME": str(tmp_path / "home"),
    }
    agent = AgentProcess(tmp_path, env, free_port())
    agent.start()
    try:
        with Client(url, (data / "keys" / "admin.key").read_text().strip()) as client:
            steered(client, agent, tmp_path)
    finally:
        agent.clean()


def steered(client: Client, agent: AgentProcess, folder: Path) -> None:
    (folder / "task.yaml").write_text("""
apiVersion: tunefleet/v1
metadata: {name: polled}
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {path: rows.jsonl}
  lora: {r: 2, alpha: 4, target_modules: [q_proj]}
  training: {max_steps: 120, batch_size: 1, max_seq_length: 64, logging_steps: 1, save_steps: 1000}
""")
    run = client.submit(folder / "task.yaml")
    task_id = run.task_id
    until(lambda: task_id in agent_jobs(agent), "it is claimed")
    agent.until_step(task_id, 3)
    assert run.refresh().status == "running"
    changed = run.command("set", {"learning_rate": 1e-5})

    run.pause()
    agent.until_status(task_id, "paused")
    until(lambda: run.refresh().status == "paused", "the server knows that it is paused")
    run.resume()
    agent.until_status(task_id, "completed")
    until(lambda: run.refresh().status == "completed", "the server knows that it is done")
    assert "final_lora" in {artifact.name for artifact in run.artifacts()}
    assert client.tasks.get_command(task_id, changed.id).state == "applied"
    points = agent.get(f"/api/training/metrics/{task_id}").json()["metrics"]
    train = [point for point in points if "train_loss" in point]
    assert [point["step"] for point in train] == list(range(1, 121))
    assert train[-2]["learning_rate"] < 1e-5, "a set survives the resume"


def agent_jobs(agent: AgentProcess) -> list[str]:
    return [job["job_id"] for job in agent.get("/api/training/jobs").json()["jobs"]]


ENDLESS = {
    "taskType": "lora_sft",
    "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
    "data": {"path": "builtin:gsm8k", "prompt_column": "question", "response_column": "answer"},
    "lora": {"r": 2, "alpha": 4, "target_modules": ["q_proj"]},
    "training": {"max_steps": 1_000_000, "batch_size": 1, "max_seq_length": 64, "save_steps": 1_000_000},
    "limits": {"max_runtime_s": 4},
}


class Foreign:
    """What a backend answers that knows nothing but the document's fields."""

    def __init__(self) -> None:
        self.waiting = ["taken-by-another", "for-us"]
        self.more: dict[str, Any] = {}
        self.job: dict[str, Any] = {
            "model_name": "builtin:gsm8k-llama-2m", "dataset_path": "not-there.jsonl", "config": CONFIG,
            "total_epochs": None, "total_steps": None, "created_at": datetime.now(UTC).isoformat(),
        }  # fmt: skip

    def __call__(self, call: Call) -> tuple[int, dict[str, Any]]:
        if call.path.endswith("/poll"):
            job = {"id": self.waiting[0], **self.job} if self.waiting else None
            return 200, {"job": job, "poll_interval_seconds": 1, "message": "x"}
        if "/claim/" in call.path:
            job_id = self.waiting.pop(0)
            if job_id == "taken-by-another":
                return 409, {"error": "Job already claimed", "code": "ALREADY_CLAIMED"}
            return 200, {"success": True, "job_token": "its-token", "job": {"id": job_id, **self.job, **self.more}}
        return (404, {"error": "Not found"}) if call.path.endswith("/heartbeat") else (200, {"success": True})


def test_a_backend_that_knows_the_document_only(tmp_path: Path, free_port: Callable[[], int]) -> None:
    backend = StubBackend(answer=Foreign())
    backend.up()
    env = {
        "BACKEND_URL": backend.url,
        "API_KEY": "wak_secret",
        "TUNEFLEET_HOME": str(tmp_path / "home"),
        "TUNEFLEET_WARM_START": "false",
    }
    agent = AgentProcess(tmp_path, env, free_port())
    agent.start()
    try:
        until(lambda: backend.statuses("for-us") == ["failed"], "what cannot run here is told")
        told = backend.taken("for-us", "status")[0]
        assert "not-there.jsonl" in told["error"]
        assert agent_jobs(agent) == ["for-us"]
        polls = [call for call in backend.calls if call.path.endswith("/poll")]
        kept = (tmp_path / "home" / "agent_id").read_text().strip()
        assert polls[0].headers["authorization"] == "Bearer wak_secret"
        assert polls[0].headers["x-agent-id"] == kept
        assert len(kept) == len("agent_") + 16
        assert next(call for call in backend.calls if call.path.endswith("/status")).headers["authorization"] == (
            "Bearer its-token"
        )
        assert sum(call.path.endswith("/heartbeat") for call in backend.calls) == 1, "it does not insist"
        assert "wak_secret" not in agent.out()
    finally:
        agent.clean()
        backend.down()


@pytest.mark.torch
@pytest.mark.timeout(180)
def test_what_runs_longer_than_its_spec_allows_is_ended_by_the_agent_itself(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    required("torch")
    foreign = Foreign()
    foreign.more = {"kind": "lora_sft", "spec": ENDLESS}
    backend = StubBackend(answer=foreign)
    backend.up()
    env = {"BACKEND_URL": backend.url, "API_KEY": "wak_secret", "TUNEFLEET_HOME": str(tmp_path / "home")}
    agent = AgentProcess(tmp_path, env, free_port())
    agent.start()
    try:
        until(lambda: "for-us" in agent_jobs(agent), "it is claimed")
        agent.until_status("for-us", "running")
        agent.until_status("for-us", "failed", timeout_s=120)
        until(lambda: "failed" in backend.statuses("for-us"), "the backend is told")
        told = backend.taken("for-us", "status")[-1]
        assert told["error"] == "The job ran longer than limits.max_runtime_s (4 s) allows."
        until(lambda: not locks.is_held(agent.job_folder("for-us") / "lock"), "its process is gone")
        assert "cancel.json" in {file.name for file in agent.job_folder("for-us").iterdir()}
    finally:
        agent.clean()
        backend.down()


def test_a_key_that_is_not_good_is_said(tmp_path: Path, server: tuple[str, Path], free_port: Callable[[], int]) -> None:
    env = {
        "BACKEND_URL": server[0],
        "API_KEY": "tf_wrong",
        "AGENT_ID": "agent_0123456789abcdef",
        "TUNEFLEET_HOME": str(tmp_path / "home"),
        "TUNEFLEET_WARM_START": "false",
    }
    agent = AgentProcess(tmp_path, env, free_port())
    agent.start()
    try:
        until(lambda: "rejected TUNEFLEET_BACKEND_KEY" in agent.out(), "it is said")
        assert agent.get("/health").status_code == 200, "its own routes work"
        assert not (tmp_path / "home" / "agent_id").exists(), "the given id counts"
    finally:
        agent.clean()


def test_poll_mode_can_be_turned_off(tmp_path: Path, free_port: Callable[[], int]) -> None:
    backend = StubBackend()
    backend.up()
    env = {
        "BACKEND_URL": backend.url, "API_KEY": "wak_x", "POLL_ENABLED": "false", "TUNEFLEET_WARM_START": "false",
        "TUNEFLEET_HOME": str(tmp_path / "home"),
    }  # fmt: skip
    agent = AgentProcess(tmp_path, env, free_port())
    agent.start()
    try:
        assert "TUNEFLEET_POLL is off" in agent.out()
        assert not backend.calls
    finally:
        agent.clean()
        backend.down()
