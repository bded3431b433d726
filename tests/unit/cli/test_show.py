from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from tunefleet.cli import show
from tunefleet.cli.console import _THEME
from tunefleet.wire.api import TaskDetail

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
