from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from tunefleet.cli import show
from tunefleet.cli.console import _THEME
from tunefleet.wire.api import EventView, TaskDetail

TRACEBACK = "Traceback (most recent call last):\n  File deep.py\nValueError: rows"


def failed(reason: str) -> str:
    task = TaskDetail(
        id="task-0123456789ab",
        workflow_id="wf-1",
        name="gsm8k-lora",
        kind="lora_sft",
        status="failed",
        owner="admin",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        reason=reason,
        error="It did not work.",
        detail=TRACEBACK,
        spec={},
    )
    console = Console(file=io.StringIO(), width=80, theme=_THEME, force_terminal=False)
    console.print(show.screen(task))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("reason", ["bug", "crashed", "killed", "out_of_memory", "timeout"])
def test_where_code_matters_its_traceback_is_shown(reason: str) -> None:
    assert "ValueError: rows" in failed(reason)


@pytest.mark.parametrize("reason", ["bad_input", "network", "disk_full"])
def test_what_a_user_can_mend_is_told_without_a_traceback(reason: str) -> None:
    shown = failed(reason)
    assert "It did not work." in shown
    assert "Traceback" not in shown
    assert "deep.py" not in shown


def test_the_newest_estimate_of_the_memory_is_shown() -> None:
    def event(number: int, name: str, **data: object) -> EventView:
        told = {"name": name, "message": "…", "level": "info", "data": data}
        return EventView(id=number, at=datetime(2026, 1, 1, tzinfo=UTC), kind="task.message", data=told)

    figures = {"weights_bytes": 1 << 30, "optimizer_bytes": 0, "available_bytes": 8 << 30, "device": "cuda"}
    events = [
        event(1, "memory.estimate", total_bytes=1 << 30, **figures),
        event(2, "memory.estimate", total_bytes=2 << 30, **figures),
        event(3, "training.started"),
    ]
    assert show.memory_estimate(events) == "about 2.0 GiB of 8.0 GiB free on the cuda (weights 1.0 GiB)"
    assert show.memory_estimate(events[2:]) is None
