"""Workflows of several tasks on a real server with two real workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.story import until
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.schemas.api import TaskDetail, WorkflowDetail

pytestmark = pytest.mark.proof

CHAIN = """apiVersion: mloc/v1
kind: EchoTask
metadata: {name: chain}
spec:
  taskType: echo
  stages:
    - name: first
      spec: {data: {type: list, items: [seed]}}
    - name: second
      spec: {data: {type: list, items: ["${first.result.items.0.output}", "of ${first.task_id}"]}}
    - name: third
      spec: {data: {type: list, items: ["${second.result.items[1].output}"]}}
"""
DIAMOND = """apiVersion: flowmesh/v1
metadata: {name: diamond}
spec:
  taskType: echo
  graph:
    nodes:
      - name: join
        dependsOn: [left, right]
        spec:
          data:
            type: list
            items: [{node: left, path: "result.items[0].output"}, {node: right, path: "items.0.output"}]
      - {name: left, dependsOn: [top], spec: {data: {type: list, items: ["L ${top.items.0.output}"]}}}
      - {name: right, dependsOn: [top], spec: {data: {type: list, items: ["R ${top.items.0.output}"]}}}
      - {name: top, spec: {data: {type: list, items: [T]}}}
"""
CONDITIONAL = """apiVersion: flowmesh/v1
metadata: {name: conditional}
spec:
  taskType: echo
  graph:
    nodes:
      - {name: ask, spec: {data: {type: list, items: [run-me]}}}
      - {name: met, dependsOn: [ask], spec: {condition: {node: ask, field: items.0.output, equals: run-me}}}
      - {name: unmet, dependsOn: [ask], spec: {condition: {node: ask, field: items.0.output, equals: another}}}
      - {name: after, dependsOn: [unmet], spec: {data: {type: list, items: [x]}}}
"""
FANOUT = """apiVersion: mloc/v1
metadata: {name: fan}
spec:
  taskType: echo
  graph:
    nodes:
      - name: all
        spec:
          parallel: {enabled: true}
          data: {type: list, items: [a, b, c, d, e]}
      - {name: after, dependsOn: [all], spec: {data: {type: list, items: ["${all.result.items.4.output}"]}}}
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that both workers have, as a mounted disk."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int], shared: Path) -> Iterator[LocalFleet]:
    environment = {"TUNEFLEET_WARM_START": "false", "TUNEFLEET_SHARED_DIRS": str(shared)}
    with LocalFleet(
        tmp_path_factory.mktemp("fleet"), port=free_port(), workers=2, environment=environment, save_client=False
    ) as fleet:
        yield fleet


@pytest.fixture
def client(fleet: LocalFleet) -> Iterator[Client]:
    with Client(fleet.url, fleet.key) as client:
        yield client


def ended(client: Client, document: str) -> WorkflowDetail:
    run = client.submit(document)
    return client.workflows.wait(run.workflow.id, timeout_s=60)


def tasks(client: Client, flow: WorkflowDetail) -> dict[str, TaskDetail]:
    return {task.name: client.tasks.get(task.id) for task in flow.tasks}


def items(task: TaskDetail) -> Any:
    assert task.result is not None, task.error
    return [each["output"] for each in task.result["result"]["items"]]


def test_a_chain_hands_on_what_each_stage_found(client: Client) -> None:
    flow = ended(client, CHAIN)
    assert flow.status == "completed"
    found = {name.rpartition(":")[2]: task for name, task in tasks(client, flow).items()}
    assert items(found["second"]) == ["seed", f"of {found['first'].id}"]
    assert items(found["third"]) == [f"of {found['first'].id}"]


def test_fault_11_a_task_may_name_those_that_are_listed_after_it(client: Client) -> None:
    found = tasks(client, ended(client, DIAMOND))
    assert {task.status for task in found.values()} == {"completed"}
    assert items(found["join"]) == ["L T", "R T"]
    begun = {name: task.started_at for name, task in found.items() if task.started_at is not None}
    assert begun["top"] < begun["left"] < begun["join"]
    assert begun["top"] < begun["right"] < begun["join"]


@pytest.mark.parametrize(("version", "after"), [("tunefleet/v1", "skipped"), ("flowmesh/v1", "completed")])
def test_a_condition_skips_a_task_and_what_follows_it(client: Client, version: str, after: str) -> None:
    flow = ended(client, CONDITIONAL.replace("flowmesh/v1", version))
    assert flow.status == "completed"
    assert {task.name: task.status for task in flow.tasks} == {
        "ask": "completed", "met": "completed", "unmet": "skipped", "after": after,
    }  # fmt: skip


def test_a_task_is_spread_over_the_workers_and_put_together_in_order(client: Client) -> None:
    until(lambda: [each.status for each in client.workers.list().items] == ["online", "online"], "both workers")
    flow = ended(client, FANOUT)
    found = tasks(client, flow)
    assert set(found) == {"all", "after", "all#0", "all#1"}
    whole = found["all"].result["result"]
    assert whole["items"] == [{"index": at, "output": letter} for at, letter in enumerate("abcde")]
    assert whole["shards"] == [found["all#0"].id, found["all#1"].id]
    assert items(found["all#0"]) + items(found["all#1"]) == list("abcde")
    assert items(found["after"]) == ["e"]


@pytest.mark.parametrize("destination", ["local", "http", "shared"])
def test_faults_15_and_16_a_reference_is_good_wherever_the_result_went(
    client: Client, fleet: LocalFleet, shared: Path, destination: str
) -> None:
    where = {
        "local": "{type: local, path: ./mine}",
        "http": f"{{type: http, url: {fleet.url}/api/v1/results}}",
        "shared": f"{{type: local, path: {shared}}}",
    }[destination]
    document = CHAIN.replace("  stages:", f"  output: {{destination: {where}}}\n  stages:")
    flow = ended(client, document)
    assert flow.status == "completed", [task.error for task in flow.tasks]
    assert (destination == "shared") == any(shared.iterdir())


def test_a_task_waits_for_one_that_was_submitted_before(client: Client) -> None:
    earlier = ended(client, CHAIN).tasks[0].id
    document = f"""apiVersion: mloc/v1
metadata: {{name: later}}
spec: {{taskType: echo, dependsOn: [{earlier}], data: {{type: list, items: ["${{{earlier}.result.items.0.output}}"]}}}}
"""
    (task,) = tasks(client, ended(client, document)).values()
    assert items(task) == ["seed"]
    assert task.depends_on == (earlier,)


def test_a_workflow_that_failed_is_run_again_from_where_it_failed(client: Client) -> None:
    wrong = CHAIN.replace("${second.result.items[1].output}", "${second.result.items[7].output}")
    flow = ended(client, wrong)
    assert [task.status for task in flow.tasks] == ["completed", "completed", "failed"]
    again = client.workflows.retry(flow.id)
    assert [task.parent_task_id for task in again.tasks] == [flow.tasks[2].id]
    assert client.workflows.wait(again.id, timeout_s=60).status == "failed"


def test_the_command_line_shows_stages_in_their_order(fleet: LocalFleet, tmp_path: Path) -> None:
    document = tmp_path / "diamond.yaml"
    document.write_text(DIAMOND)
    environment = {**os.environ, "TUNEFLEET_URL": fleet.url, "TUNEFLEET_KEY": fleet.key}

    def run(*words: str) -> str:
        command = [sys.executable, "-c", "from tunefleet.cli.main import main; main()", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said = run("submit", str(document), "--follow")
    assert "Submitted diamond as wf-" in said
    assert "waiting for left" in said
    assert said.index("top: completed") < said.index("join: completed")
    id_ = said.partition(" as ")[2].split()[0]
    head, summary, _, titles, *rows = run("show", id_).splitlines()
    assert (head.split()[0], summary.partition(";")[0]) == ("diamond", "4 completed")
    assert "WORKER" in titles
    assert [row.split()[0] for row in rows[:4:3]] == ["top", "join"]
    assert "Stages" in run("show", json.loads(run("show", id_, "--json"))["tasks"][0]["id"])
