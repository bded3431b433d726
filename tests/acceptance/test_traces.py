"""One trace a task, across the server's and the worker's process, as an OpenTelemetry collector gets it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.conftest import ENVIRONMENT, PATIENCE_S
from tests.acceptance.story import document, until
from tests.fakes.collector import Collector, Span, collecting
from tests.libraries import required
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(360)]

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ECHO = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: hello}
spec: {taskType: echo, data: {type: list, items: [hello]}}
"""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int], collector: Collector
) -> Iterator[LocalFleet]:
    required("trl")
    data = tmp_path_factory.mktemp("traced")
    environment = ENVIRONMENT | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "TUNEFLEET_LOG_FORMAT": "json"}
    with LocalFleet(data, port=free_port(), environment=environment, save_client=False) as made:
        made.await_workers(PATIENCE_S)
        yield made


def post(fleet: LocalFleet, text: str, **headers: str) -> str:
    """Submit a document of one task; returns its id."""
    headers |= {"Authorization": f"Bearer {fleet.key}"}
    reply = httpx.post(f"{fleet.url}/api/v1/workflows", json={"document": text}, headers=headers, timeout=60)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["tasks"][0]["id"])


def only(spans: list[Span], name: str) -> Span:
    found = [span for span in spans if span.name == name]
    assert len(found) == 1, f"{len(found)} spans {name}"
    return found[0]


def test_a_training_is_one_trace_from_submit_to_step(fleet: LocalFleet, collector: Collector) -> None:
    task_id = post(fleet, document(6), traceparent=CALLER)
    with Client(fleet.url, fleet.key) as client:
        task = client.tasks.wait(task_id, timeout_s=PATIENCE_S)
        assert (task.status, task.error) == ("completed", None)
    wanted = {"task", "submit", "place", "attempt", "offer", "accept", "prepare", "launch", "first step", "save"}
    until(lambda: wanted | {"deliver"} <= {span.name for span in collector.of_task(task_id)}, "all spans")
    spans = collector.of_task(task_id)
    assert {span.trace_id for span in spans} == {CALLER.split("-")[1]}
    whole, attempt, launch = only(spans, "task"), only(spans, "attempt"), only(spans, "launch")
    assert whole.parent_id == CALLER.split("-")[2]
    assert {only(spans, name).parent_id for name in ("submit", "place", "attempt")} == {whole.span_id}
    assert {only(spans, name).parent_id for name in ("offer", "accept", "prepare", "launch", "deliver")} == {
        attempt.span_id
    }
    inner = [span for span in spans if span.name in {"first step", "save"}]
    assert {span.parent_id for span in inner} == {launch.span_id}
    assert {span.service for span in spans} == {"tunefleet-server", "tunefleet-worker"}
    assert {span.name for span in spans if span.service == "tunefleet-server"} == {
        "task", "submit", "place", "attempt", "offer",
    }  # fmt: skip
    starts = [only(spans, name).start_ns for name in ("task", "attempt", "prepare", "launch", "deliver")]
    assert starts == sorted(starts)
    assert launch.start_ns <= min(span.start_ns for span in inner) <= max(span.end_ns for span in inner)
    assert not any(span.failed for span in spans)
    job = json.loads((fleet.results_dir() / task_id / "job.json").read_text())
    assert job["env"]["TRACEPARENT"] == f"00-{launch.trace_id}-{launch.span_id}-01"


def test_a_task_without_a_caller_has_a_trace_of_its_own(fleet: LocalFleet, collector: Collector) -> None:
    first, second = post(fleet, ECHO), post(fleet, ECHO)
    for task_id in (first, second):
        until(lambda: {"task", "run"} <= {span.name for span in collector.of_task(task_id)}, "its spans")  # noqa: B023
    one, other = collector.of_task(first), collector.of_task(second)
    assert one[0].trace_id != other[0].trace_id
    assert only(one, "task").parent_id == ""
    assert only(one, "run").parent_id == only(one, "attempt").span_id


def test_a_caller_who_keeps_no_trace_gets_no_span(fleet: LocalFleet, collector: Collector) -> None:
    unsampled = CALLER.replace("0af76519", "1bf76519").removesuffix("01") + "00"
    task_id = post(fleet, ECHO, traceparent=unsampled)
    with Client(fleet.url, fleet.key) as client:
        assert client.tasks.wait(task_id, timeout_s=PATIENCE_S).status == "completed"
    later = post(fleet, ECHO)
    until(lambda: "task" in {span.name for span in collector.of_task(later)}, "the spans of a later task")
    assert collector.spans(unsampled.split("-")[1]) == []


def test_log_lines_of_the_worker_name_the_task_and_its_trace(fleet: LocalFleet, collector: Collector) -> None:
    lines: list[dict[str, str]] = []
    for path in [*Path(fleet.logs).glob("*.log"), *fleet.results_dir().glob("worker.log")]:
        lines += [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
    of_tasks = [line for line in lines if "task_id" in line and "attempt" in line]
    assert of_tasks
    assert all({"time", "level", "logger", "message", "worker_id"} <= line.keys() for line in of_tasks)
    traced = {line["task_id"]: line["trace_id"] for line in of_tasks if "trace_id" in line}
    assert traced
    for task_id, trace_id in traced.items():
        assert {trace_id} == {span.trace_id for span in collector.of_task(task_id)} or not collector.of_task(task_id)
