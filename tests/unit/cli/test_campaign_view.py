"""What the command line says of a campaign in a line."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console, Group

from tests.unit.cli.test_campaign_board import NOW, campaign
from tunefleet.cli.campaigns import views as view
from tunefleet.lifecycle.cycle import CampaignStatus, CycleStatus
from tunefleet.schemas.campaign import LineageView

CHUNK = {"task_id": "task-2", "artifact_id": "art-2", "digest": "c" * 64, "rows": 475}
DATA = {
    "rows_task": "task-1", "train": {"digest": "a" * 64}, "test": {"digest": "b" * 64}, "chunk": CHUNK, "epoch": 0,
    "index": 0, "chunks": 4, "start": 0, "stop": 475, "to": "hf://org/daily-0",
}  # fmt: skip


def test_lineage_leads_from_the_chunks_digest_to_the_merged_model() -> None:
    cycle = LineageView(
        cycle=0,
        position=0,
        status=CycleStatus.COMPLETED,
        chunk=DATA,
        task={"key": "camp-1/0", "provider": "local", "ticket": "task-3", "base": {}},
        candidates={"metric": "loss"},
        chosen={"candidate": {"ref": "task-3"}, "evaluation": {"task_id": "task-4"}, "loss": 3.8},
        merged={"task_id": "task-5", "artifact_id": "art-5", "digest": "d" * 64, "form": "model"},
    )
    console = Console(width=300, force_terminal=False)
    with console.capture() as captured:
        console.print(Group(*view.lineage([cycle])))
    lines = {line.split()[0]: line for line in captured.get().splitlines() if line.strip()}
    assert "digest cccccccccccc, rows 475" in lines["chunk"]
    assert "aaaa" not in lines["chunk"], "the rows of the other cycles are in it, too"
    assert "ticket task-3" in lines["task"]
    assert "ref task-3" in lines["adapter"]
    assert "task id task-4, loss 3.8" in lines["evaluation"]
    assert "digest dddddddddddd" in lines["merged"]


def test_a_whole_model_is_not_called_an_adapter() -> None:
    candidate = {"ref": "org/whole", "form": "model", "name": "org/whole"}
    cycle = LineageView(cycle=0, position=0, status=CycleStatus.RUNNING, chosen={"candidate": candidate})
    (_, facts) = view.lineage([cycle])
    console = Console(width=300, force_terminal=False)
    with console.capture() as captured:
        console.print(facts)
    lines = {line.split()[0]: line for line in captured.get().splitlines() if line.strip()}
    assert "ref org/whole" in lines["model"]
    assert "adapter" not in lines


NEEDS = "Action required: `tunefleet campaign retry daily`. The job was lost."
SOON = NOW + timedelta(minutes=9)


@pytest.mark.parametrize(
    ("cycle", "said"),
    [
        ({"waiting": "training"}, "merge: training"),
        ({"waiting": "training", "retry_at": SOON}, "merge: training; next check in 9m"),
        ({"error": "It failed.", "tries": 2, "retry_at": SOON}, "merge failed 2 times; retry in 9m: It failed."),
        ({"error": NEEDS, "tries": 1, "retry_at": SOON}, f"{NEEDS} (merge failed 1 time; retry in 9m)"),
    ],
)
def test_a_wait_has_its_end_and_what_a_person_has_to_type_is_in_front(cycle: dict[str, Any], said: str) -> None:
    found = campaign()
    assert found.cycle is not None
    shown = found.model_copy(update={"cycle": found.cycle.model_copy(update=cycle)})
    assert view.doing(shown, now=NOW) == said


def test_the_command_of_a_held_campaign_is_in_the_table_of_campaigns() -> None:
    held = campaign().model_copy(update={"status": CampaignStatus.HELD, "reason": NEEDS})
    (activity,) = (column for column in view.campaign_table([held]).columns if str(column.header).lower() == "activity")
    assert [str(cell) for cell in activity.cells] == [NEEDS]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"what": "waiting", "of": "task-1"}, "waiting for a worker: task-1 is queued"),
        ({"what": "merging", "of": "task-1", "done": 4, "total": 8, "unit": "MiB"}, "merging 4 of 8 MiB"),
    ],
)
def test_a_queued_task_is_said_to_wait_for_a_worker(said: dict[str, Any], text: str) -> None:
    cycle = campaign(**said).cycle
    assert cycle is not None
    assert cycle.activity is not None
    assert view.activity_text(cycle.activity) == text
