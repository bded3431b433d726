from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tunefleet.cli.tasks import compare
from tunefleet.schemas.api import TaskDetail

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def trained(task_id: str, rate: float, loss: float, **spec: Any) -> TaskDetail:
    return TaskDetail(
        id=task_id,
        workflow_id="wf-1",
        name="lora",
        kind="lora_sft",
        status="completed",
        owner="admin",
        created_at=BEGAN,
        started_at=BEGAN,
        ended_at=BEGAN + timedelta(seconds=90),
        spec={"training": {"learning_rate": rate, "max_steps": 20}, **spec},
        result={"losses": {"held_out_before": 5.0, "held_out_after": loss}, "steps": 20},
    )


def test_training_runs_show_what_they_reached_and_the_settings_that_differ(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [trained("task-a", 1e-3, 4.0), trained("task-b", 5e-4, 4.5, lora={"r": 8})]
    compare._report_training(runs, as_json=False)
    rows = {line[:23].strip(): line[23:].split() for line in capsys.readouterr().out.splitlines()}
    assert rows["eval loss"] == ["5", "→", "4", "(−20.0%)", "5", "→", "4.5000", "(−10.0%)"]
    assert rows["training.learning_rate"] == ["0.001", "0.0005"]
    assert rows["lora.r"] == ["–", "8"]
    assert "training.max_steps" not in rows
    compare._report_training(runs, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["settings"] == {"training.learning_rate": [1e-3, 5e-4], "lora.r": [None, 8]}
    assert found["results"]["task-b"]["losses"]["held_out_after"] == 4.5


def test_equal_settings_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    compare._report_training([trained("task-a", 1e-3, 4.0), trained("task-b", 1e-3, 4.1)], as_json=False)
    assert "The settings are the same." in capsys.readouterr().out
