from __future__ import annotations

import io
import math
from collections import deque
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tunefleet.cli.console import _THEME
from tunefleet.cli.tasks import metrics, task_view
from tunefleet.schemas.api import EventView, MetricPoint, ProgressView, TaskDetail

AT = datetime(2026, 1, 1, tzinfo=UTC)
PROGRESS = ProgressView(
    phase="training",
    step=40,
    max_steps=100,
    step_time_s=0.151,
    tokens_per_s=5234.4,
    eta_s=9,
    rss_bytes=800 << 20,
)


def task(status: str = "running", **more: Any) -> TaskDetail:
    fields: dict[str, Any] = {
        "id": "task-0123456789ab",
        "workflow_id": "wf-1",
        "name": "gsm8k-lora",
        "kind": "lora_sft",
        "owner": "admin",
        "worker_id": "box-1",
        "created_at": AT,
        "started_at": AT,
        "spec": {},
        **more,
    }
    return TaskDetail(status=status, **fields)


def points(count: int) -> tuple[MetricPoint, ...]:
    return tuple(
        MetricPoint(
            step=step, at=AT, values={"loss": 8 * math.exp(-step / 20) if step != 7 else "NaN", "learning_rate": 1e-4}
        )
        for step in range(1, count + 1)
    )


def event(kind: str, **data: Any) -> EventView:
    return EventView(id=1, at=AT, kind=kind, worker_id="box-1", data=data)


def drawn(watched: task_view.Watched, width: int = 80, height: int = 30) -> str:
    console = Console(file=io.StringIO(), width=width, theme=_THEME, force_terminal=False)
    console.print(task_view.screen(watched, width=width, height=height, interrupt="Ctrl-C leaves it running."))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [80, 120])
def test_the_screen_has_all_that_one_wants_to_know(width: int) -> None:
    events = deque(
        [event("task.offered", reason="offered", attempt=1), event("task.started", reason="started", attempt=2)]
    )
    shown = drawn(task_view.Watched(task(progress=PROGRESS), points(40), events), width)
    for wanted in ("gsm8k-lora", "running", "40/100", "40%", "9s left", "151ms", "5,234", "800 MiB", "1e-04"):
        assert wanted in shown.replace("0.0001", "1e-04"), wanted
    assert "Offered to box-1" in shown
    assert "Started on box-1: attempt 2" in shown
    assert "Ctrl-C leaves it running." in shown
    assert any("⠀" <= character <= "⣿" for character in shown)
    assert max(len(line) for line in shown.splitlines()) <= width
    assert ("on box-1" in shown.splitlines()[0]) == (width >= 100)


def test_a_small_terminal_has_no_curve_and_nothing_is_cut_off() -> None:
    shown = drawn(task_view.Watched(task(progress=PROGRESS), points(40)), 60, 14)
    assert not any("⠁" <= character <= "⣿" for character in shown)
    assert len(shown.splitlines()) <= 14
    assert "40/100" in shown


def test_before_the_first_step_the_screen_says_what_it_waits_for() -> None:
    assert "unschedulable: no GPU" in drawn(
        task_view.Watched(task("queued", why="unschedulable: no GPU", started_at=None))
    )
    assert "starting …" in drawn(task_view.Watched(task()))
    assert "loading …" in drawn(task_view.Watched(task(progress=ProgressView(phase="loading"))))
    assert "bad input" in drawn(task_view.Watched(task("failed", reason="bad_input")))


def test_a_silent_server_is_told() -> None:
    assert "has not responded" in drawn(task_view.Watched(task(progress=PROGRESS), silent_since=0.0))


def test_a_finished_screen_is_full() -> None:
    shown = drawn(task_view.Watched(task("completed", progress=PROGRESS, finished_at=AT), points(3)))
    assert "100/100  100%" in shown
    assert "Ctrl-C" not in shown


def test_one_line_for_a_pipe() -> None:
    said = task_view.status_line(task_view.Watched(task(progress=PROGRESS), points(40)))
    assert "running training 40/100  loss" in said
    assert "9s left" in said
    assert task_view.status_line(task_view.Watched(task("queued", why="waiting"))) == "queued (waiting)"


@pytest.mark.parametrize(
    ("happened", "words"),
    [
        (event("task.message", message="Training from step 0."), "Training from step 0."),
        (event("task.queued", reason="ready", attempt=1), "Queued"),
        (event("task.retrying", reason="worker_lost", error="gone"), "Retrying (worker lost): gone"),
        (
            event("task.failed", reason="bad_input", error="No rows.", attempt=2),
            "Failed: attempt 2, bad input",
        ),
        (event("task.offered", reason="offered", error="gone", attempt=2), "Offered to box-1: attempt 2"),
        (event("task.paused", reason="paused"), "Paused"),
        (event("command.durable", command="pause", step=165), "Pause durable: step 165"),
        (event("checkpoint.saved", name="checkpoint-25", step=25), "Checkpoint saved: checkpoint-25, step 25"),
        (event("artifact.published", name="final_lora"), "Artifact published: final_lora"),
    ],
)
def test_events_in_words(happened: EventView, words: str) -> None:
    assert task_view.sentence(happened) == words


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        ("ERROR: No rows.\n\n--- attempt 2 on box-1 ---\nERROR: No rows.\n", False),
        ("loading\nERROR: No rows.\n", True),
        ("", False),
    ],
)
def test_the_end_of_a_log_is_shown_if_it_says_more_than_the_error(log: str, shown: bool) -> None:
    console = Console(file=io.StringIO(), width=80, theme=_THEME, force_terminal=False)
    client: Any = SimpleNamespace(tasks=SimpleNamespace(log=lambda task_id, tail_bytes: SimpleNamespace(text=log)))
    task_view.failure_screen(console, client, task("failed", error="No rows."))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert said.startswith("gsm8k-lora failed: No rows.")
    assert ("Last lines of the log" in said) == shown


def test_a_curve_needs_two_finite_points() -> None:
    assert metrics.curve([(1, 2.0)], title="loss", width=60, height=10).plain == ""
    assert metrics.curve([(1, 2.0), (2, math.nan)], title="loss", width=60, height=10).plain == ""
    shown = metrics.curve([(1, 4.0), (2, 3.0), (3, 2.0)], title="loss", width=60, height=10).plain.splitlines()
    assert (shown[0].strip(), len(shown)) == ("loss", 10)
    assert shown[-1].split() == ["1", "2", "3"]
    assert metrics.numbers({"loss": "NaN"}, "loss") is None


def test_exit_codes_of_what_was_followed() -> None:
    codes = [task_view.exit_code_for(found) for found in (task("completed"), task("failed"), task("cancelled"), None)]
    assert codes == [0, 1, 9, 130]
