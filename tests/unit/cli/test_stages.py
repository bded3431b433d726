"""Workflows of several tasks on the terminal."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from tunefleet.cli import stages
from tunefleet.cli.console import _THEME
from tunefleet.wire.api import TaskView, WorkflowView

AT = datetime(2026, 1, 1, tzinfo=UTC)


def task(name: str, *after: str, **more: Any) -> TaskView:
    fields = {"status": "pending", "kind": "echo", "owner": "admin", "created_at": AT, "workflow_id": "wf-1", **more}
    return TaskView(id=f"task-{name}", name=name, depends_on=tuple(f"task-{other}" for other in after), **fields)


def shown(status: str, *tasks: TaskView) -> str:
    flow = WorkflowView(id="wf-1", name="pipe", owner="admin", status=status, created_at=AT, tasks=tasks)
    console = Console(file=io.StringIO(), width=110, theme=_THEME, force_terminal=False)
    console.print(stages.screen(flow))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_stages_stand_in_the_order_in_which_they_run_and_parts_behind_their_whole() -> None:
    tasks = [
        task("join", "left", "right"), task("right", "top"), task("left", "top"), task("top"), task("away", "other"),
        task("left#0", shard_of="task-left", shard=(0, 2)), task("left#1", shard_of="task-left", shard=(1, 2)),
    ]  # fmt: skip
    names = [each.name for each in stages.in_order(tasks)]
    assert names == ["top", "right", "left", "left#0", "left#1", "join", "away"]


def test_each_stage_says_what_it_waits_for() -> None:
    text = shown("running", task("top", status="running"), task("next", "top", why="waiting for top (running)."))
    assert "waiting for top (running)." in text
    assert "tunefleet cancel wf-1" in text


def test_of_a_failed_workflow_the_first_failure_is_named_and_how_to_go_on() -> None:
    text = shown(
        "failed",
        task("b", "a", status="failed", error="a (task-a) failed: no such column."),
        task("a", status="failed", error="no such column."),
    )
    assert "See: tunefleet show task-a" in text
    assert "tunefleet retry wf-1" in text


@pytest.mark.parametrize(
    ("status", "code"), [("completed", 0), ("failed", 1), ("cancelled", None), (None, None)], ids=str
)
def test_the_exit_code_tells_how_a_workflow_ended(status: str | None, code: int | None) -> None:
    flow = None
    if status is not None:
        flow = WorkflowView(id="wf-1", name="pipe", owner="admin", status=status, created_at=AT, tasks=())
    found = stages.exit_code(flow)
    assert (found == code) if code is not None else found not in {0, 1}
