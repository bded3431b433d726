"""The checker, fed with histories that are broken in one place each, names what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos import whole
from tests.chaos.checker import check
from tests.chaos.history import History, Row
from tests.chaos.ledger import Ledger

Break = Callable[[History, Ledger], History | None]


def _change(table: str, number: int, **columns: Any) -> Break:
    def broken(history: History, _: Ledger) -> None:
        getattr(history.rows, table)[number].update(columns)

    return broken


def _drop(table: str, number: int) -> Break:
    def broken(history: History, _: Ledger) -> None:
        del getattr(history.rows, table)[number]

    return broken


def _repeat(table: str, number: int, **columns: Any) -> Break:
    def broken(history: History, _: Ledger) -> None:
        rows: list[Row] = getattr(history.rows, table)
        rows.insert(number + 1, {**rows[number], **columns})

    return broken


def _with(**fields: Any) -> Break:
    return lambda history, _: replace(history, **fields)


def _told(what: Any, id_: str, **facts: Any) -> Break:
    return lambda _, ledger: ledger.note(what, id_, **facts)


def _one_part(history: History, ledger: Ledger) -> None:
    """Let the training be a federated one, of which one part is there that has trained nothing."""
    history.rows.tasks[1]["name"] = "task-trained#0"
    asked = {"key": "task-trained", "name": "federated", "round": 0, "expects": "federated", "steps": whole.STEPS}
    ledger.note("workflow", "wf-trained", tasks=["task-trained"], **asked)


BROKEN: dict[str, tuple[Break, str, str]] = {
    "a task that never ended": (_change("tasks", 0, status="running"), "results", "is lost: it is running"),
    "an end that no event tells of": (_drop("events", 6), "results", "its events end with running"),
    "a task that went on after its end": (
        _repeat("events", 6, id=99, data='{"status": "queued"}', kind="task.queued"),
        "results", "from completed to queued",
    ),
    "two attempts with a result": (
        _change("attempts", 0, state="finished", reason="finished"), "results", "by 2 attempts",
    ),
    "a result that nobody has brought": (
        _change("attempts", 1, state="void", reason="worker_lost"), "results", "no attempt has finished it",
    ),
    "a result that is gone": (_change("task_documents", 0, result=None), "results", "the result of task task-trained"),
    "a result of fewer steps": (
        _change("task_documents", 0, result='{"result": {"steps": 3}}'), "results", "has trained 3 steps",
    ),
    "a failure": (_change("tasks", 1, status="failed", reason="killed", error="x"), "results", "is failed (killed: x)"),
    "an adapter that is gone": (_drop("artifacts", 0), "results", "the adapter of task task-trained"),
    "an adapter that is there twice": (
        _repeat("artifacts", 0, id="art-2"), "results", "has 2 artifacts called final_lora",
    ),
    "a file that is gone": (_with(digests={"d-pushed": "d-pushed"}), "results", "safetensors of artifact art-1"),
    "a file that has changed": (
        _with(digests={"d-pushed": "d-pushed", "d-adapter": "d-other"}), "results", "is not what was stored",
    ),
    "work that was begun too often": (
        _with(marks={"/counted": ["begin"] * 3 + ["end"]}), "results", "has begun 3 times in 2 attempts",
    ),
    "work that was never done": (_with(marks={"/counted": []}), "results", "never run to its end"),
    "an update that counts twice": (_repeat("federation_updates", 0), "results", "part-0's update of step 2 2 times"),
    "rows that weigh in two versions": (
        _repeat("federation_updates", 0, step=4, rows_after=12), "results", "has counted rows 5 to 8 of part-0 twice",
    ),
    "a part that is gone": (_one_part, "results", "task task-trained (task-trained) has 1 parts"),
    "a part without its adapter": (_one_part, "results", "the adapter of task task-counted (task-trained#0) is lost"),
    "a part without its series": (_one_part, "series", "(task-trained#0) lacks steps [1, 2, 3, 4]"),
    "an update that waits for ever": (_change("federation_updates", 0, state="waiting"), "results", "is waiting"),
    "a version that is gone": (_drop("federation_versions", 0), "results", "that is not its newest"),
    "a federation that never ended": (_change("federations", 0, status="running"), "results", "fed-1 is running"),
    "a chunk that was trained on twice": (_change("campaign_cycles", 1, position=0), "results", "on a chunk twice"),
    "a chunk that was left out": (_change("campaign_cycles", 1, position=2), "results", "has left out a chunk"),
    "a cycle that failed": (_change("campaign_cycles", 1, status="failed", error="x"), "results", "has failed: x"),
    "a cycle without a model": (_drop("model_versions", 1), "results", "cycle 1 of campaign chaos has 0 versions"),
    "a cycle with another's task": (
        _change("campaign_steps", 1, outcome='{"task_id": "task-c0"}'),
        "results", "has taken task task-c0 for 2 cycles",
    ),
    "a gap in a series": (_drop("metric_points", 3), "series", "lacks steps [3]"),
    "a step that is shown twice": (_change("launches", 0, hidden_after=3), "series", "has twice steps [3]"),
    "a point that came twice": (_repeat("metric_points", 4, seq=3), "series", "has step 4 2 times"),
    "a step beyond the end": (_repeat("metric_points", 4, seq=3, step=5, window_from=5, window_to=5), "series", "[5]"),
    "a point beyond the cursor": (_change("launches", 1, cursor=2), "series", "has a point beyond its cursor 2"),
    "a record that never arrived": (_change("launches", 1, cursor=3), "series", "4 records on worker-1, and 3 have"),
    "a hole in a log": (_change("log_chunks", 1, end=40), "series", "has a hole or a double before byte 40"),
    "a line that came twice": (
        _repeat("log_chunks", 1, end=35, data=b"line 3\n"), "series", "ends with lines [1, 2, 3, 3]",
    ),
    "a workflow that is gone": (_drop("workflows", 0), "acknowledged", "workflow wf-trained (wf-trained) is not there"),
    "a task that is gone": (_drop("tasks", 1), "acknowledged", "task-counted of workflow wf-counted is not there"),
    "a workflow that is there twice": (_repeat("workflows", 0, id="wf-9"), "acknowledged", "wf-trained is there 2"),
    "an upload that is gone": (_drop("artifact_files", 1), "acknowledged", "art-pushed is not there as it was"),
    "an upload whose bytes are gone": (
        _with(digests={"d-adapter": "d-adapter"}), "acknowledged", "art-pushed is not there as it was",
    ),
    "an upload whose bytes have changed": (
        _with(digests={"d-adapter": "d-adapter", "d-pushed": "d-x"}), "acknowledged", "art-pushed is not there as it",
    ),
    "a pause that was forgotten": (_told("pause", "task-trained"), "acknowledged", "the pause of task task-trained"),
    "a resume that was forgotten": (_told("resume", "task-trained"), "acknowledged", "the resume of task task-trained"),
    "a command that is gone": (_drop("commands", 0), "acknowledged", "command cmd-1 is not there"),
    "a campaign that is gone": (_told("campaign", "other"), "acknowledged", "campaign other is not there"),
    "a cancel that was forgotten": (
        _change("tasks", 2, status="queued"), "acknowledged", "task task-cancelled was cancelled and is queued",
    ),
    "a lease that nobody gave back": (_change("attempts", 0, state="accepted"), "at rest", "is accepted by worker-1"),
    "an offer that nobody took back": (_change("attempts", 0, state="offered"), "at rest", "is offered by worker-1"),
    "a command without an outcome": (_change("commands", 0, state="pending"), "at rest", "(cmd-1) of task-trained is"),
    "a round that somebody still holds": (_change("federation_rounds", 0, holder="srv"), "at rest", "is held by srv"),
    "a workflow that is still open": (_change("workflows", 0, status="running"), "at rest", "wf-trained is running"),
    "a file that is still arriving": (
        lambda history, _: history.rows.arriving_files.append({"name": "f", "attempt_id": "a"}),
        "at rest", "still arriving",
    ),
    "something that was left": (_with(left=("process 7 is left",)), "at rest", "process 7 is left"),
    "a secret that somebody can read": (_with(secrets=("the key is in a log",)), "secrets", "the key is in a log"),
    "a process that died by itself": (_with(deaths=("server ended by itself",)), "at rest", "ended by itself"),
}  # fmt: skip


def test_a_whole_history_has_no_fault() -> None:
    assert check(whole.history(), whole.ledger()) == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_history_is_named(name: str) -> None:
    breaks, promise, words = BROKEN[name]
    history, ledger = whole.history(), whole.ledger()
    found = [str(fault) for fault in check(breaks(history, ledger) or history, ledger)]
    assert any(each.startswith(f"{promise}: ") and words in each for each in found), found


def test_a_full_disk_that_is_told_is_no_loss() -> None:
    history, ledger = whole.history(), whole.ledger()
    history.rows.tasks[1].update(status="failed", reason="disk_full")
    history.rows.events[13].update(data='{"status": "failed"}')
    history.rows.attempts[3].update(reason="disk_full")
    assert any("is failed (disk_full" in fault.what for fault in check(history, ledger)), "worker-1 was never filled"
    history.rows.attempts[3]["worker_id"] = "worker-2"
    assert check(history, ledger) == []


def test_a_part_that_fails_of_a_full_disk_ends_the_whole() -> None:
    """The whole has no attempt, and says the part's reason; another part is cancelled."""
    history = whole.history()
    trained, counted, _ = history.rows.tasks
    ledger = whole.ledger(together=True)
    trained.update(status="cancelled", reason="sibling_failed")
    counted.update(status="failed", reason="disk_full")
    history.rows.events[6].update(data='{"status": "cancelled"}')
    history.rows.events[13].update(data='{"status": "failed"}')
    history.rows.attempts[3].update(worker_id="worker-2", reason="disk_full")
    assert check(history, ledger) == []
    for row in (counted, history.rows.attempts[3]):
        row.update(reason="crashed")
    assert any("is cancelled (sibling_failed" in fault.what for fault in check(history, ledger))


def test_while_a_campaign_goes_on_only_what_the_ledger_knows_of_is_checked() -> None:
    history, ledger = whole.history(), whole.ledger()
    history.rows.tasks.append(
        {"seq": 9, "id": "task-c", "name": "c", "status": "running", "reason": None, "error": None}
    )
    assert check(history, ledger, whole=False) == []
    assert check(history, ledger) != []
