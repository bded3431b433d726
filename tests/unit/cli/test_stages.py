"""Workflows of several tasks on the terminal."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from rich.console import Console

from tunefleet.cli.console import _THEME
from tunefleet.cli.tasks import workflow_view
from tunefleet.schemas.api import RetriedView, TaskView, WorkflowView

AT = datetime(2026, 1, 1, tzinfo=UTC)


def task(name: str, *after: str, **more: Any) -> TaskView:
    fields = {"status": "pending", "kind": "echo", "owner": "admin", "created_at": AT, "workflow_id": "wf-1", **more}
    return TaskView(id=f"task-{name}", name=name, depends_on=tuple(f"task-{other}" for other in after), **fields)


def shown(status: str, *tasks: TaskView, retried_as: RetriedView | None = None, height: int | None = None) -> str:
    flow = WorkflowView(
        id="wf-1", name="pipe", owner="admin", status=status, created_at=AT, tasks=tasks, retried_as=retried_as
    )
    console = Console(file=io.StringIO(), width=110, theme=_THEME, force_terminal=False)
    console.print(workflow_view.screen(flow, height=height))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_stages_stand_in_the_order_in_which_they_run_and_parts_behind_their_whole() -> None:
    tasks = [
        task("join", "left", "right"), task("right", "top"), task("left", "top"), task("top"), task("away", "other"),
        task("left#0", shard_of="task-left", shard=(0, 2)), task("left#1", shard_of="task-left", shard=(1, 2)),
    ]  # fmt: skip
    names = [each.name for each in workflow_view.in_order(tasks)]
    assert names == ["top", "right", "left", "left#0", "left#1", "join", "away"]


class Read(TaskView):
    """A task that counts how often anything of it is looked at."""

    looks: ClassVar[int] = 0

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            Read.looks += 1
        return super().__getattribute__(name)


def looks_at(count: int, *, fan: bool) -> int:
    """Return how often a table looks at its tasks: a chain that failed at its head, or a whole of many parts."""
    end = {"status": "failed", "reason": "upstream_failed"}
    first = task("0", status="failed", reason="bug", error="a bug.")
    tasks = [first] + [
        task(str(at), shard_of="task-0", shard=(at - 1, count - 1), worker_id=f"w{at}")
        if fan
        else task(str(at), str(at - 1), **end)
        for at in range(1, count)
    ]
    read = [Read.model_validate(each.model_dump()) for each in reversed(tasks)]
    Read.looks = 0
    workflow_view.stage_table(read)
    return Read.looks


@pytest.mark.parametrize("fan", [False, True])
def test_a_table_of_twice_as_many_tasks_is_twice_the_work(fan: bool) -> None:
    small, large = looks_at(50, fan=fan), looks_at(100, fan=fan)
    assert large < 2.2 * small
    assert looks_at(5000, fan=fan) < 110 * small, "so many may a document have"


def test_a_circle_which_no_document_may_have_hides_no_task() -> None:
    tasks = [task("a", "b"), task("b", "a"), task("c")]
    assert [each.name for each in workflow_view.in_order(tasks)] == ["c", "a", "b"]


def test_a_running_workflow_that_is_longer_than_the_terminal_shows_what_is_at_work_first() -> None:
    tasks = [
        *(task(f"done{at}", status="completed") for at in range(40)),
        task("bad", "done0", status="failed", reason="bug", error="a bug.", finished_at=AT),
        task("gone", "bad", status="failed", reason="upstream_failed", finished_at=AT),
        task("now", "done1", status="running", worker_id="w1"),
        *(task(f"later{at}", "now", why="waiting for now.") for at in range(40)),
    ]
    text = shown("running", *tasks, height=24)
    names = [line.split()[0] for line in text.partition("STAGE")[2].splitlines()[1:13]]
    assert names == ["bad", "now", *(f"later{at}" for at in range(10))]
    assert "71 more tasks: tunefleet show wf-1" in text
    assert len(text.splitlines()) <= 24
    assert "task-done39" in shown("failed", *tasks, height=24), "what has ended stands whole"


def test_each_stage_says_what_it_waits_for() -> None:
    text = shown("running", task("top", status="running"), task("next", "top", why="waiting for top (running)."))
    assert "waiting for top (running)." in text
    assert "tunefleet cancel wf-1" in text


def after_s(seconds: int) -> datetime:
    return AT + timedelta(seconds=seconds)


def test_of_a_failed_workflow_the_first_failure_is_named_and_how_to_go_on() -> None:
    told = "a (task-a) failed: no such column."
    text = shown(
        "failed",
        # Ends of others are stored in the same moment, or before one that failed by itself later.
        task("b", "a", status="failed", reason="upstream_failed", error=told, finished_at=after_s(9)),
        task("c", "b", status="failed", reason="upstream_failed", error=told, finished_at=after_s(9)),
        task("late", status="failed", reason="bug", error="a bug.", finished_at=after_s(20)),
        task("a", status="failed", reason="bad_input", error="no such column.", worker_id="w7", finished_at=after_s(9)),
    )
    assert re.search(r"Details +tunefleet show task-a\s", text)
    assert "tunefleet retry wf-1" in text
    below = [line.strip() for line in text.partition("a failed on w7:")[2].splitlines()]
    assert below[1] == "no such column.", "whole, below the table"
    assert text.count("because a failed") == 2
    assert told not in text


def test_of_a_task_that_was_spread_the_part_that_failed_is_named_and_not_those_that_went_with_it() -> None:
    part = {"shard_of": "task-whole", "kind": "echo"}
    text = shown(
        "failed",
        task("whole", status="failed", reason="bug", error="Its part whole#1 (task-whole#1) failed: a bug."),
        task("whole#0", status="cancelled", shard=(0, 2), **part, worker_id="w1", error="Another part failed."),
        task("whole#1", status="failed", shard=(1, 2), **part, worker_id="w2", reason="bug", error="a bug."),
        task("after", "whole", status="failed", reason="upstream_failed", error="whole (task-whole) failed: …"),
    )
    assert re.search(r"Details +tunefleet show task-whole#1\s", text)
    assert "whole#1 failed on w2:" in text
    assert "because whole failed" in text


def test_what_holds_a_delivery_up_stands_whole_below_the_table() -> None:
    cause = "http://hooks.example.org:18999/results/of/the/team cannot be reached: Connection refused."
    why = f"delivering: {cause} The result is delivered later."
    text = shown("running", task("top", status="running", why=why), task("next", "top", why="waiting for top."))
    assert "see below" in text
    below = " ".join(text.partition("top has run; delivering its results:")[2].split())
    assert below.startswith(f"{cause} The result is delivered later. ")


def test_what_was_skipped_for_anothers_sake_says_so_and_the_last_that_ran_is_shown() -> None:
    unmet = "Its condition is not met."
    text = shown(
        "completed",
        task("ask", status="completed", worker_id="w1", started_at=AT, finished_at=AT),
        task("all", "ask", status="completed", started_at=AT, finished_at=AT),
        task("all#0", status="completed", shard_of="task-all", shard=(0, 2), worker_id="w1", finished_at=AT),
        task("all#1", status="completed", shard_of="task-all", shard=(1, 2), worker_id="w2", finished_at=AT),
        task("no", "ask", status="skipped", reason="condition_unmet", error=unmet, finished_at=AT),
        task("nor", "no", status="skipped", reason="upstream_skipped", error=f"no (task-no) was skipped: {unmet}",
             finished_at=after_s(65)),
    )  # fmt: skip
    lines = text.splitlines()
    assert lines[1].strip() == "2 completed, 2 skipped; took 1m 5s", "parts count with their whole"
    assert lines[3].split() == ["STAGE", "TASK", "STATUS", "WORKER", "DURATION", "NOTE"], "nobody has progress"
    rows = {line.split()[0]: line for line in lines[4:10]}
    assert "2 workers" in rows["all"]
    assert "w2" in rows["all#1"]
    assert "because no was skipped" in rows["nor"]
    assert text.rstrip().endswith("Details  tunefleet show task-all")


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("bad_input", "Retry the rest tunefleet retry wf-1 --set FIELD=VALUE"),
        (
            "delivery_failed",
            "Deliver the result tunefleet artifacts deliver task-a Retry the rest tunefleet retry wf-1",
        ),
    ],
)
def test_the_way_out_fits_the_failure(reason: str, says: str) -> None:
    text = shown("failed", task("a", status="failed", reason=reason, error="It broke."))
    assert " ".join(text.split()).endswith(" ".join(says.split()))


@pytest.mark.parametrize(("status", "left"), [("running", False), ("completed", False), ("failed", True)])
def test_a_workflow_that_was_retried_names_the_newer_one(status: str, left: bool) -> None:
    newer = RetriedView(id="wf-2", status=status)
    text = shown("failed", task("a", status="failed", reason="bug", error="It broke."), retried_as=newer)
    assert f"Retried as wf-2 ({status})" in text
    assert ("Retry the rest tunefleet retry wf-2" in " ".join(text.split())) is left
    assert "retry wf-1" not in text


def test_a_workflow_of_which_nothing_ran_has_no_column_for_it() -> None:
    text = shown("running", task("a", status="queued", why="waiting."), task("b", "a", why="waiting for a (queued)."))
    lines = text.splitlines()
    assert lines[1].startswith("1 queued, 1 pending; ")
    assert lines[1].rstrip().endswith(" so far")
    assert lines[3].split() == ["STAGE", "TASK", "STATUS", "NOTE"]


def test_a_line_says_where_a_task_runs_and_why_it_ended() -> None:
    tasks = [
        task("a", status="running", worker_id="w1"),
        task("b", status="failed", reason="bug", error="a bug.", worker_id="w1"),
        task("c", "b", status="failed", reason="upstream_failed", error="b (task-b) failed: a bug."),
    ]
    assert [workflow_view.line(each, workflow_view.Causes(tasks)) for each in tasks] == [
        "a: running on w1",
        "b: failed",
        "c: failed (because b failed)",
    ]


@pytest.mark.parametrize(
    ("status", "code"), [("completed", 0), ("failed", 1), ("cancelled", None), (None, None)], ids=str
)
def test_the_exit_code_tells_how_a_workflow_ended(status: str | None, code: int | None) -> None:
    flow = None
    if status is not None:
        flow = WorkflowView(id="wf-1", name="pipe", owner="admin", status=status, created_at=AT, tasks=())
    found = workflow_view.exit_code(flow)
    assert (found == code) if code is not None else found not in {0, 1}
