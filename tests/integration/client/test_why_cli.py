"""`tunefleet why`, `submit --dry-run` and the load of workers, against a real server."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.integration.api.support import ECHO, HandWorker, Running
from tests.integration.client.conftest import Cli, Played, finish
from tunefleet.client import Client
from tunefleet.schemas.api import ValidateReply
from tunefleet.schemas.fleet import WhyView

TRAIN = """apiVersion: tunefleet/v1
metadata: {name: train}
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {prompts: [one, two]}
"""


SKIPPED = """apiVersion: tunefleet/v1
metadata: {name: two}
spec:
  taskType: echo
  graph:
    nodes:
      - {name: first, spec: {data: {type: list, items: [a]}}}
      - name: second
        dependsOn: [first]
        spec: {data: {type: list, items: [b]}, condition: {node: first, field: ok, equals: false}}
"""


def test_why_names_what_each_worker_lacks(cli: Cli, client: Client, hand: HandWorker) -> None:
    task_id = client.submit(TRAIN).task_id
    said = cli("why", task_id[:14])
    assert said.code == 0
    assert "Unschedulable: by-hand cannot run lora_sft tasks." in said.out
    assert "not eligible" in said.out
    view = WhyView.model_validate(cli("why", task_id, "--json").json)
    assert [(each.worker_id, each.verdict, each.reason) for each in view.workers] == [
        ("by-hand", "never", "cannot run lora_sft tasks")
    ]
    client.tasks.cancel(task_id)
    assert cli("why", "task-unknown").code == 4


def test_why_of_a_task_that_has_its_turn_shows_the_score(cli: Cli, client: Client, hand: HandWorker) -> None:
    hand.exchange(want={"light": 0})
    task_id = client.submit(ECHO).task_id
    assert "by-hand is busy" in cli("why", task_id).out
    token = hand.take(task_id)
    said = cli("why", task_id).out
    assert "Attempt 1 on by-hand is running." in said
    other = client.submit(ECHO).task_id
    assert f"; running {task_id}" in cli("why", other).out
    client.tasks.cancel(other)
    assert re.search(r"^Running on by-hand since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\.$", said, re.MULTILINE)
    hand.finish(token)
    said = cli("why", task_id).out
    assert "Completed on by-hand." in said
    assert "ended (finished)" in said


def test_why_of_a_task_that_has_ended_says_how(
    cli: Cli, client: Client, running: Running, hand: HandWorker, take: Callable[..., Played]
) -> None:
    hand.exchange(want={"light": 4})
    failed, stopped, skipped = take(), take(), client.submit(SKIPPED)
    first, second = (task.id for task in skipped.workflow.tasks)
    with running.client(running.worker_key) as http:
        finish(http, hand, failed, outcome="failed", reason="bad_input", error="There is no such file.")
        finish(http, hand, stopped, outcome="cancelled", reason="cancelled_by_user", error="")
    hand.finish(hand.take(first))
    for task_id, said in (
        (failed.task_id, "It has failed (bad input): There is no such file."),
        (stopped.task_id, "Cancelled on request."),
        (second, "It was skipped (condition unmet): "),
    ):
        shown = " ".join(cli("why", task_id).out.split())
        assert said in shown
        assert "No pending reason" not in shown
        view = WhyView.model_validate(cli("why", task_id, "--json").json)
        assert (view.why or "").startswith(said)


def test_a_dry_run_says_where_tasks_would_go_and_submits_nothing(
    cli: Cli, client: Client, hand: HandWorker, tmp_path: Path
) -> None:
    hand.exchange(want={"light": 4})
    before = [task.id for task in client.tasks.list(limit=1).items]
    good, stuck = tmp_path / "echo.yaml", tmp_path / "train.yaml"
    good.write_text(ECHO)
    stuck.write_text(TRAIN)
    said = cli("submit", good, "--dry-run")
    assert (said.code, "hello (echo) runs on by-hand" in said.out, "Nothing was submitted." in said.out) == (
        0,
        True,
        True,
    )
    reply = ValidateReply.model_validate(cli("submit", good, "--dry-run", "--json").json)
    assert [(each.name, each.worker_id, each.workers[0].verdict) for each in reply.forecasts] == [
        ("hello", "by-hand", "fits")
    ]
    refused = cli("submit", stuck, "--dry-run")
    assert refused.code == 3
    assert "train (lora_sft) unschedulable: by-hand cannot run lora_sft tasks." in " ".join(refused.out.split())
    assert [task.id for task in client.tasks.list(limit=1).items] == before
    assert client.workflows.validate(ECHO).forecasts == ()


def test_a_dry_run_says_what_runs_at_the_same_time(cli: Cli, hand: HandWorker, tmp_path: Path) -> None:
    hand.exchange(want={"light": 4})
    spread = tmp_path / "spread.yaml"
    shards = "taskType: echo\n  data: {items: [a, b, c]}\n  parallel: {enabled: true, max_shards: 3}\n"
    spread.write_text(f"apiVersion: tunefleet/v1\nmetadata: {{name: spread}}\nspec:\n  {shards}")
    said = " ".join(cli("submit", spread, "--dry-run").out.split())
    assert "spread (echo) runs on by-hand: 3 of 3 at the same time" in said
    assert "Up to 3 tasks and parts run at the same time; the online workers can run all of them." in said


def test_workers_show_how_busy_they_are(cli: Cli, client: Client, hand: HandWorker) -> None:
    load = {"memory_free_bytes": 3 << 30, "disk_free_bytes": 5 << 30, "load_1m": 1.25, "load_5m": 0.5}
    hand.exchange(load=load)
    told = client.workers.get("by-hand").load
    assert told is not None
    assert (told.memory_free_bytes, told.load_1m) == (3 << 30, 1.25)
    assert "1.2" in cli("workers").out
    assert "1.25 0.50" in cli("workers", "show", "by-hand").out


def test_what_a_task_fetches_is_said_wherever_it_is_shown(cli: Cli, client: Client, hand: HandWorker) -> None:
    task_id = client.submit(ECHO).task_id
    token = hand.take(task_id)
    words = "etching model (37 of 90 MB)"
    hand.exchange(fetching={token: f"f{words}"})
    assert words in cli("why", task_id).out
    assert words in cli("show", task_id).out
    assert words in " ".join(cli("ls").out.split())
    hand.finish(token)
