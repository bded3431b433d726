"""Where the time of a run went: phases without gaps, whatever happened to it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tunefleet.analysis.run_trace import Phase, phases
from tunefleet.cli.tasks.trace import bar
from tunefleet.schemas.api import EventView, TaskDetail

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def status(seconds: float, kind: str, status: str, **data: Any) -> tuple[float, str, dict[str, Any]]:
    return seconds, f"task.{kind}", {"status": status, **data}


def said(seconds: float, name: str, **data: Any) -> tuple[float, str, dict[str, Any]]:
    return seconds, "task.message", {"name": name, "data": data}


def launched(seconds: float, prepared: float) -> tuple[float, str, dict[str, Any]]:
    return said(seconds, "launch.started", prepared_at=at(prepared).timestamp())


def saved(seconds: float, stall_s: float) -> tuple[float, str, dict[str, Any]]:
    return seconds, "checkpoint.saved", {"stall_s": stall_s}


QUEUED = status(0, "queued", "queued", reason="ready")


def offered(seconds: float, attempt: int) -> tuple[float, str, dict[str, Any]]:
    return status(seconds, "offered", "dispatched", reason="offered", attempt=attempt)


def started(seconds: float, attempt: int) -> tuple[float, str, dict[str, Any]]:
    return status(seconds, "started", "running", reason="started", attempt=attempt)


def traced(events: list[tuple[float, str, dict[str, Any]]], end: float | None) -> tuple[Phase, ...]:
    fields = {name: None for name in TaskDetail.model_fields}
    task = TaskDetail.model_construct(
        **{**fields, "id": "task-1", "created_at": START, "finished_at": None if end is None else at(end)}
    )
    views = [
        EventView(id=number, at=at(seconds), kind=kind, worker_id="w1", data=data)
        for number, (seconds, kind, data) in enumerate(events)
    ]
    return phases(task, views, at(100))


WHOLE = [QUEUED, offered(2, 1), started(3, 1), launched(7, 5), said(9, "training.started")]


@pytest.mark.parametrize(
    ("events", "end", "expected"),
    [
        (
            [*WHOLE, saved(12, 0.5), saved(15, 0.5), said(16, "launch.ended"), status(18, "completed", "completed")],
            18,
            "queue 2, offer 1, fetch 2, start 2, load 2, train 6, save 1, deliver 2",
        ),
        (
            [
                *WHOLE,
                status(10, "retrying", "queued", reason="killed", backoff_s=10),
                offered(22, 2),
                started(23, 2),
                launched(25, 24),
                said(26, "launch.ended"),
            ],
            30,
            "queue 2, offer 1, fetch 2, start 2, load 2, train 1, backoff 10, queue 2, offer 1, fetch 1, start 1, "
            "run 1, deliver 4",
        ),
        (
            [*WHOLE, status(20, "paused", "paused"), status(50, "resumed", "queued", reason="resumed"), offered(55, 2)],
            60,
            "queue 2, offer 1, fetch 2, start 2, load 2, train 11, paused 30, queue 5, offer 5",
        ),
        (
            [*WHOLE, launched(30, 20), said(31, "training.started")],
            None,
            "queue 2, offer 1, fetch 2, start 2, load 2, train 11, start 10, load 1, train 69",
        ),
        # The worker's clock is an hour behind.
        ([QUEUED, offered(2, 1), started(3, 1), launched(-3590, -3595)], 10, "queue 2, offer 1, run 7"),
        # The worker's clock is an hour ahead.
        ([QUEUED, offered(2, 1), started(3, 1), launched(3610, 3605)], 10, "queue 2, offer 1, fetch 7"),
        (
            [status(0, "pending", "pending"), status(8, "queued", "queued", reason="ready")],
            10,
            "dependencies 8, queue 2",
        ),
        ([QUEUED, offered(2, 1), started(3, 1), status(4, "completed", "completed")], 4, "queue 2, offer 1, fetch 1"),
        ([], 5, "queue 5"),
    ],
    ids=["whole", "retry", "pause", "relaunch", "behind", "ahead", "dependencies", "light", "no events"],
)
def test_the_phases_add_up_to_the_wall_time(events: list[Any], end: float | None, expected: str) -> None:
    found = traced(events, end)
    assert ", ".join(f"{phase.name} {phase.seconds:g}" for phase in found) == expected
    assert sum(phase.seconds for phase in found) == pytest.approx(100 if end is None else end)
    starts = [phase.start_s for phase in found]
    assert starts == sorted(starts)


def test_a_phase_names_its_attempt_worker_and_cause() -> None:
    found = traced([*WHOLE, status(10, "retrying", "queued", reason="out_of_memory"), offered(22, 2)], 30)
    assert [(each.name, each.attempt, each.worker_id, each.note) for each in found[-3:]] == [
        ("train", 1, "w1", ""), ("queue", None, None, "out of memory"), ("offer", 2, "w1", ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("start_s", "seconds", "expected"), [(0, 50, "█" * 16), (50, 50, " " * 16 + "█" * 16), (99.9, 0.1, " " * 31 + "█")]
)
def test_a_bar_has_its_place_and_is_never_empty(start_s: float, seconds: float, expected: str) -> None:
    assert bar(Phase("train", start_s, seconds), 100) == expected
