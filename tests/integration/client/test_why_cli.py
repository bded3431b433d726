"""`tunefleet why`, `submit --dry-run` and the load of workers, against a real server."""

from __future__ import annotations

from pathlib import Path

from tests.integration.client.conftest import Cli
from tests.integration.server.support import ECHO, HandWorker
from tunefleet.client import Client
from tunefleet.wire.api import ValidateReply
from tunefleet.wire.fleet import WhyView

TRAIN = """apiVersion: tunefleet/v1
metadata: {name: train}
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {prompts: [one, two]}
"""


def test_why_names_what_each_worker_lacks(cli: Cli, client: Client, hand: HandWorker) -> None:
    task_id = client.submit(TRAIN).task_id
    said = cli("why", task_id[:14])
    assert said.code == 0
    assert "Unschedulable: by-hand cannot run lora_sft tasks." in said.out
    assert "never" in said.out
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
    assert "Attempt 1 on by-hand runs." in cli("why", task_id).out
    hand.finish(token)
    assert "ended (finished)" in cli("why", task_id).out


def test_a_dry_run_says_where_tasks_would_go_and_submits_nothing(
    cli: Cli, client: Client, hand: HandWorker, tmp_path: Path
) -> None:
    hand.exchange(want={"light": 4})
    before = [task.id for task in client.tasks.list(limit=1).items]
    good, stuck = tmp_path / "echo.yaml", tmp_path / "train.yaml"
    good.write_text(ECHO)
    stuck.write_text(TRAIN)
    said = cli("submit", good, "--dry-run")
    assert (said.code, "hello (echo) goes to by-hand" in said.out, "Nothing was submitted." in said.out) == (
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


def test_workers_show_how_busy_they_are(cli: Cli, client: Client, hand: HandWorker) -> None:
    load = {"memory_free_bytes": 3 << 30, "disk_free_bytes": 5 << 30, "load_1m": 1.25, "load_5m": 0.5}
    hand.exchange(load=load)
    told = client.workers.get("by-hand").load
    assert told is not None
    assert (told.memory_free_bytes, told.load_1m) == (3 << 30, 1.25)
    assert "1.2" in cli("workers").out
    assert "1.25 0.50" in cli("workers", "show", "by-hand").out
