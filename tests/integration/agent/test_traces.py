"""An agent's jobs in traces: a claimed one below its attempt in the server's trace, a posted one below its caller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.fakes.collector import Collector, Span, collecting
from tests.integration.agent.conftest import AgentProcess, request, until, write_rows
from tests.libraries import required

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(180)]

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TASK = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: traced}
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {path: "builtin:gsm8k", prompt_column: question, response_column: answer, max_samples: 8}
  lora: {r: 2, alpha: 4, target_modules: [q_proj]}
  training: {max_steps: 2, batch_size: 1, max_seq_length: 64, logging_steps: 1}
"""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int], collector: Collector
) -> Iterator[tuple[str, Path]]:
    data, port = tmp_path_factory.mktemp("data"), free_port()
    env = {**os.environ, "TUNEFLEET_HOME": str(data / "home"), "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    command = [sys.executable, "-m", "tunefleet.api", "--data", str(data), "--port", str(port)]
    with (data / "server.out").open("wb") as out:
        process = subprocess.Popen(command, cwd=data, env=env, stdout=out, stderr=out)
    until((data / "keys" / "worker.key").exists, "the server has made its keys")
    yield f"http://127.0.0.1:{port}", data
    process.terminate()
    process.wait(15)


@pytest.fixture(scope="module")
def agent(
    tmp_path_factory: pytest.TempPathFactory,
    free_port: Callable[[], int],
    server: tuple[str, Path],
    collector: Collector,
) -> Iterator[AgentProcess]:
    required("torch")
    folder = tmp_path_factory.mktemp("agent")
    write_rows(folder / "datasets")
    url, data = server
    env = {
        "BACKEND_URL": url, "API_KEY": (data / "keys" / "worker.key").read_text().strip(),
        "TUNEFLEET_HOME": str(folder / "home"), "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
    }  # fmt: skip
    found = AgentProcess(folder, env, free_port())
    found.start()
    yield found
    found.clean()


def only(spans: list[Span], name: str) -> Span:
    (found,) = [span for span in spans if span.name == name]
    return found


def test_a_claimed_job_is_one_trace_over_server_and_agent(
    agent: AgentProcess, server: tuple[str, Path], collector: Collector
) -> None:
    url, data = server
    headers = {"Authorization": f"Bearer {(data / 'keys' / 'admin.key').read_text().strip()}", "traceparent": CALLER}
    reply = httpx.post(f"{url}/api/v1/workflows", json={"document": TASK}, headers=headers, timeout=60)
    assert reply.status_code == 201, reply.text
    task_id = str(reply.json()["tasks"][0]["id"])
    wanted = {"task", "submit", "place", "attempt", "prepare", "launch", "first step", "deliver"}
    until(lambda: wanted <= {span.name for span in collector.of_task(task_id)}, agent.out()[-3000:], 120)
    spans = collector.of_task(task_id)
    assert {span.trace_id for span in spans} == {CALLER.split("-")[1]}
    attempt, launch = only(spans, "attempt"), only(spans, "launch")
    assert {only(spans, name).parent_id for name in ("prepare", "launch", "deliver")} == {attempt.span_id}
    assert only(spans, "first step").parent_id == launch.span_id
    assert {span.service for span in spans if span.name in {"prepare", "launch", "first step", "deliver"}} == {
        "tunefleet-agent"
    }
    job = json.loads((agent.job_folder(task_id) / "job.json").read_text())
    assert job["env"]["TRACEPARENT"] == f"00-{launch.trace_id}-{launch.span_id}-01"


def test_a_posted_job_lies_below_its_caller(agent: AgentProcess, collector: Collector) -> None:
    caller = CALLER.replace("0af76519", "1bf76519")
    reply = agent.post("/api/training/execute", request("posted-job", max_steps=2), headers={"traceparent": caller})
    assert reply.status_code == 200, reply.text
    wanted = {"task", "prepare", "launch", "first step"}
    until(lambda: wanted <= {span.name for span in collector.spans(caller.split("-")[1])}, "its spans", 120)
    spans = collector.spans(caller.split("-")[1])
    whole = only(spans, "task")
    assert (whole.parent_id, whole.about["tunefleet.task"]) == (caller.split("-")[2], "posted-job")
    assert {only(spans, name).parent_id for name in ("prepare", "launch")} == {whole.span_id}
    assert not whole.failed
