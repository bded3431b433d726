"""What a failed task of ours means to the step that has asked for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tunefleet.campaign.contract import CycleFailed
from tunefleet.campaign.desk import TaskFailed, failure_of


@pytest.mark.parametrize(
    ("reason", "kind", "passing"),
    [
        ("bad_input", CycleFailed, None),
        ("diverged", CycleFailed, None),
        ("bug", TaskFailed, False),
        ("out_of_memory", TaskFailed, False),
        ("network", TaskFailed, True),
        ("worker_lost", TaskFailed, True),
    ],
)
def test_a_paid_model_is_not_lost_because_a_worker_was(
    reason: str, kind: type[Exception], passing: bool | None
) -> None:
    task: Any = SimpleNamespace(id="task-1", status="failed", reason=reason, error="torn")
    error = failure_of(task, "candidate-0")
    assert type(error) is kind
    assert getattr(error, "passing", None) is passing
    assert "candidate-0: the task task-1 has failed: torn" in str(error)
