"""Where a task is wanted and a workflow is named; and where workflows are listed."""

from __future__ import annotations

import re

import pytest

from tests.integration.api.support import ECHO, HandWorker
from tests.integration.client.conftest import Cli
from tunefleet.client import Client
from tunefleet.schemas.api import WorkflowView

TWO = """apiVersion: tunefleet/v1
metadata: {name: two}
spec:
  taskType: echo
  graph:
    nodes:
      - {name: first, spec: {data: {type: list, items: [a]}}}
      - {name: second, dependsOn: [first], spec: {data: {type: list, items: [b]}}}
"""
WANT_A_TASK = (
    "why ID", "logs ID", "metrics ID", "artifacts ls ID", "artifacts get x --run ID", "artifacts get x --task ID",
    "artifacts deliver ID",
    "pause ID", "resume ID", "stop ID", "save ID", "set ID learning_rate=1", "checkpoints ID", "clone ID",
    "rm --yes ID", "notify log --task ID",
)  # fmt: skip


@pytest.mark.parametrize("command", WANT_A_TASK)
def test_where_a_task_is_wanted_a_workflow_names_its_tasks(
    cli: Cli, client: Client, hand: HandWorker, command: str
) -> None:
    run = client.submit(TWO)
    first, second = (task.id for task in run.workflow.tasks)
    said = cli(*command.replace("ID", run.workflow.id).split())
    assert f"{run.workflow.id} is a workflow with several tasks." in said.err
    assert f"Name one of them: {first} (first), {second} (second)." in said.err
    assert said.code == 3
    client.workflows.cancel(run.workflow.id)


def test_of_a_workflow_of_one_task_that_one_is_meant(cli: Cli, client: Client, hand: HandWorker) -> None:
    run = client.submit(ECHO)
    assert cli("why", run.workflow.id, "--json").json["task_id"] == run.task_id
    hand.finish(hand.take(run.task_id))
    assert run.task_id in cli("logs", run.workflow.id).err
    assert cli("checkpoints", run.workflow.id).code == 0


def test_workflows_are_listed_with_their_tasks(cli: Cli, client: Client, hand: HandWorker) -> None:
    one, two = client.submit(ECHO), client.submit(TWO)
    said = cli("ls", "--workflows")
    assert re.search(rf"^{two.workflow.id}\s+two\s+running\s+\S+\s+1 queued, 1 pending$", said.out, re.MULTILINE)
    assert re.search(rf"^{one.workflow.id}\s+hello\s+running\s+\S+\s+{one.task_id}$", said.out, re.MULTILINE)
    newest = [WorkflowView.model_validate(each) for each in cli("ls", "--workflows", "-n", 1, "--json").json]
    assert [flow.id for flow in newest] == [two.workflow.id]
    assert "There are more" in cli("ls", "-w", "-n", 1).out
    tasks = cli("ls").out
    assert tasks.split("\n")[0].split()[:2] == ["RUN", "WORKFLOW"]
    assert re.search(rf"^{one.task_id}\s+{one.workflow.id} ", tasks, re.MULTILINE)
    for flow in (one, two):
        client.workflows.cancel(flow.workflow.id)
    assert two.workflow.id in cli("ls", "-w", "--status", "cancelled").out
    assert cli("ls", "-w", "--owner", "nobody").out == "No workflow matches.\n"
    refused = cli("ls", "-w", "--status", "queued")
    assert (refused.code, "No workflow is queued." in refused.err) == (3, True)
    assert cli("ls", "-w", "--kind", "echo").code == 3


def test_a_log_that_is_not_there_says_why(cli: Cli, client: Client, hand: HandWorker) -> None:
    hand.exchange(want={"light": 0})
    task_id = client.submit(ECHO).task_id
    said = cli("logs", task_id)
    assert (said.code, said.out, said.err) == (0, "", f"{task_id} has no log: it has not started.\n")
    assert f"Explain  tunefleet why {task_id}" in cli("show", task_id).out
    hand.finish(hand.take(task_id))
    why = f"{task_id} has no log: echo runs execute inside their worker by-hand.\n"
    for options in ((), ("-n", 5), ("-f",)):
        assert cli("logs", *options, task_id).err == why
    assert "tunefleet logs" not in cli("show", task_id).out
