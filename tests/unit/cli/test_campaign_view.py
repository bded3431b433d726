"""What the command line says of a campaign in a line."""

from __future__ import annotations

from rich.console import Console, Group

from tunefleet.cli import campaign_view as view
from tunefleet.lifecycle.cycle import CycleStatus
from tunefleet.wire.campaign import LineageView

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
