from __future__ import annotations

import io
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from tunefleet.cli.console import _THEME
from tunefleet.cli.tasks import show
from tunefleet.cli.tasks.task_commands import run_time
from tunefleet.schemas.api import ArtifactView, CheckpointView, EventView, TaskDetail, TaskView

AT = datetime(2026, 1, 1, tzinfo=UTC)
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


def commands(text: str) -> list[tuple[str, str]]:
    """Return the labels and commands at the end of a screen."""
    listed = text.rstrip().rsplit("\n\n", 1)[-1].splitlines()
    found = [re.split(r"\s{2,}(?=tunefleet )", line.strip(), maxsplit=1) for line in listed]
    return [(label, command) for label, command in found]


def test_what_comes_next_is_only_what_can_work() -> None:
    failed = {"status": "failed", "reason": "crashed", "error": "It broke.", "started_at": AT, "attempts": 1}
    assert commands(ended(**failed)) == [("Retry", "tunefleet retry task-ask")], "no log, no checkpoint"
    saved = CheckpointView(step=4, name="checkpoint-4", digest="d", size_bytes=1, at=AT)
    related = show.Related(log=True, checkpoints=(saved,))
    assert commands(ended(related=related, kind="lora_sft", **failed)) == [
        ("Resume from the last checkpoint", "tunefleet resume task-ask"),
        ("Retry", "tunefleet retry task-ask"),
        ("Log", "tunefleet logs task-ask"),
    ]
    wrong = {**failed, "reason": "bad_input"}
    assert commands(ended(**wrong)) == [("Change and retry", "tunefleet clone task-ask --set FIELD=VALUE")]
    for waits in (
        {"status": "queued", "why": "waiting: box-1 is busy."},
        {"status": "running", "started_at": AT, "why": "delivering: http://x answers 503.", "kind": "lora_sft"},
    ):
        text = ended(**waits)
        assert ("Explain", "tunefleet why task-ask") in commands(text)
        assert "Plot" not in text
    running = {"status": "running", "started_at": AT}
    assert ("Plot", "tunefleet metrics --plot task-ask") in commands(ended(kind="lora_sft", **running))
    assert commands(ended(**running)) == [("Follow", "tunefleet follow task-ask")]


TRAINED = {
    "training_time_seconds": 50.2,
    "output_dir": "/data/results/task-ask",
    "steps": 80,
    "epochs": 0.32,
    "losses": {"train_first": 4.9, "train_last": 0.08, "held_out_before": 5.25, "held_out_after": 0.5},
    "held_out": {
        "exact_match": {"rows": 200, "before": 0.0, "after": 0.765},
        "answers": [{"prompt": "2 dozen?", "before": "no", "after": "24", "reference": "24"}],
    },
    "tokens": {"seen": 68932},
    "throughput": {"step_time_s": 0.6279, "tokens_per_s": 1372.3},
    "data": {"dataset": "rows.jsonl", "rows": 4000, "held_out_rows": 200},
    "used": {"quantization": "4bit"},
    "memory": {"peak_bytes": 255782912, "device": "cpu"},
}
MADE = ArtifactView(
    id="art-1", name="final_lora", kind="adapter", digest="d", size_bytes=1, file_count=6, owner="admin", created_at=AT
)


def test_a_training_run_shows_what_one_asks_first() -> None:
    run = {
        "kind": "lora_sft",
        "spec": {"training": {}, "lora": {"r": 16}, "model": {"source": {"identifier": "tiny"}}},
        "result": {"result": TRAINED},
        "started_at": AT,
        "finished_at": AT,
        "ran_s": 97.0,
        "worker_id": "box-1",
    }
    best = CheckpointView(step=60, name="checkpoint-60", digest="d", size_bytes=1, best=True, eval_loss=0.49, at=AT)
    text = ended(related=show.Related(checkpoints=(best,)), artifacts=(MADE,), **run)
    facts = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in text.split("\n\n")[0].splitlines()[1:]]
    assert facts == [
        ["method", "SFT, LoRA r 16, 4bit"],
        ["model", "tiny"],
        ["data", "rows.jsonl: 4,000 rows, 200 eval rows"],
        ["eval loss", "5.2500 → 0.5  (−90.5%)"],
        ["exact match", "0% → 76.5% on 200 rows"],
        ["duration", "1m 37s (training 50s)"],
        ["steps", "80 (0.32 epochs, 628ms each)"],
        ["tokens", "68,932 (1,372 tokens/s)"],
        ["best checkpoint", "checkpoint-60, eval loss 0.49"],
        ["peak memory", "244 MiB on CPU"],
    ]
    assert "1 eval answer before and after: tunefleet show task-ask --all" in text
    assert commands(text) == [
        ("Chat", "tunefleet chat task-ask"),
        ("Download", "tunefleet artifacts get final_lora --run task-ask"),
        ("Plot", "tunefleet metrics --plot task-ask"),
    ]
    for internal in ("wf-1", "/data/results", "box-1", "owner", "Attempts"):
        assert internal not in text, internal
    whole = ended(everything=True, **run)
    for internal in ("wf-1", "/data/results", "box-1", "owner", "Attempts", "2 dozen?"):
        assert internal in whole, internal


def test_a_failure_says_where() -> None:
    at = {"phase": "training", "step": 40, "max_steps": 80}
    text = ended(status="failed", reason="out_of_memory", error="No memory.", worker_id="box-1", progress=at)
    assert "failed (out of memory)" in text.splitlines()[0]
    assert "No memory.\nOn box-1, at step 40 of 80." in text
    assert text.count("No memory.") == 1


def test_one_sentence_stands_once() -> None:
    told = "The model 'nowhere' cannot be fetched: the Hub does not know it."
    tries = [{"number": at, "worker_id": "w", "state": "finished", "error": told, "offered_at": AT} for at in (1, 2, 3)]
    other = TaskView(
        id="task-b", name="b", workflow_id="wf-1", kind="echo", status="completed", owner="admin", created_at=AT
    )
    text = ended(
        siblings=(other,), status="failed", reason="bad_input", error=told, attempts=3, attempt_list=tries,
        started_at=AT, finished_at=AT,
    )  # fmt: skip
    assert text.count(told) == 1
    assert text.count("same error") == 3
    assert "see above" in text
    assert "0s (3 attempts)" in text


def test_the_time_is_what_a_task_has_run() -> None:
    def time(**fields: Any) -> str:
        given = {
            "id": "t",
            "workflow_id": "w",
            "name": "n",
            "kind": "sft",
            "owner": "admin",
            "created_at": AT,
            **fields,
        }
        return run_time(TaskView(**given))

    assert time(status="queued") == ""
    assert time(status="paused", started_at=AT, ran_s=90.0) == "1m 30s", "not since its start"
    assert time(status="queued", ran_s=90.0) == "1m 30s", "nor is what has run forgotten"
    now = datetime.now(UTC)
    assert time(status="running", started_at=now - timedelta(seconds=10), ran_s=90.0) in {"1m 40s", "1m 41s"}
    ended = {"status": "completed", "started_at": AT, "finished_at": AT + timedelta(hours=2)}
    assert time(**ended, ran_s=100.0) == "1m 40s"
    assert time(**ended) == "2h", "spread across workers: it has no attempt of its own"


def test_what_one_copies_stands_whole_on_a_line_of_its_own() -> None:
    url = (
        "http://127.0.0.1:8000/api/v1/results/task-0123456789ab/files/final_lora.tar.gz?expires=1&signature="
        + "ab" * 32
    )
    text = ended(everything=True, result={"result": {"archive_url": url, "steps": 4, "saved": True}})
    lines = [line.rstrip() for line in text.splitlines()]
    assert url in lines, "no blanks before it, and not broken"
    assert lines[lines.index(url) - 1] == "archive_url"
    assert "saved        yes" in lines
    assert "steps        4" in lines


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


def ended(
    name: str = "ask",
    siblings: tuple[TaskView, ...] = (),
    related: show.Related | None = None,
    artifacts: tuple[ArtifactView, ...] = (),
    *,
    everything: bool = False,
    **more: Any,
) -> str:
    plain = {"workflow_id": "wf-1", "kind": "echo", "owner": "admin", "created_at": datetime(2026, 1, 1, tzinfo=UTC)}
    task = TaskDetail.model_validate(
        {"id": f"task-{name}", "name": name, "spec": {}, "status": "completed"} | plain | more
    )
    console = Console(file=io.StringIO(), width=100, theme=_THEME, force_terminal=False)
    shown = show.screen(task, artifacts, (*siblings, task), related or show.Related(), everything=everything)
    console.print(shown, crop=False)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_an_echo_shows_what_it_answered_and_not_its_spec_once_more() -> None:
    items = [{"index": at, "output": f"answer {at}\nin two lines"} for at in range(11)]
    inner = {"ok": True, "echo": {"taskType": "echo", "data": {"items": ["a"]}}, "items": items, "count": 11}
    text = ended(result={"result": inner})
    answers = text[text.index("Result") :].splitlines()
    assert answers[1].split() == ["items", *["answer", "0", "in", "two", "lines"]]
    assert answers[9].strip() == "… and 3 more"
    assert "echo." not in text
    assert "entries" not in text


def test_of_a_training_lists_are_counted_and_few_plain_values_are_shown() -> None:
    inner = {
        "task_id": "task-ask",
        "losses": {"train_first": 5.5},
        "tags": ["a", "b"],
        "rows": [{"x": [1]}, {"x": [2]}],
    }
    text = ended(kind="lora_sft", result={"result": inner})
    rows = [line.split(maxsplit=1) for line in text[text.index("Result") :].splitlines()[1:4]]
    assert [(name, value.strip()) for name, value in rows] == [
        ("losses.train_first", "5.5000"), ("tags", "a, b"), ("rows", "2 entries"),
    ]  # fmt: skip


def test_steps_and_metrics_are_read_at_a_glance() -> None:
    metric = {"value": 0.25, "low": 0.2, "high": 0.31, "n": 1200, "unit": "share", "confidence": 0.95}
    unsure = {"value": 3.5, "low": None, "high": None, "n": 1}
    steps = [{"step": "filter", "rows_in": 200, "rows_out": 150, "by": {}}, {"step": "dedupe", "exact": True}]
    text = ended(result={"result": {"metrics": {"accuracy": metric, "loss": unsure}, "steps": steps}}, kind="evaluate")
    lines = [line.split(maxsplit=1) for line in text[text.index("Result") :].splitlines()[1:4]]
    assert [(name, value.strip()) for name, value in lines] == [
        ("metrics.accuracy", "0.25  (0.2 – 0.31)  n 1,200"),
        ("metrics.loss", "3.5000  n 1"),
        ("steps", "filter · rows_in 200 · rows_out 150"),
    ]
    assert "\n" + " " * 18 + "dedupe · exact yes" in text
    many = ended(result={"result": {f"key-{number}": number for number in range(30)}})
    assert "and 6 more (--all shows them)" in many


def test_a_task_that_never_ran_leads_to_the_one_that_is_to_blame() -> None:
    plain = {"workflow_id": "wf-1", "kind": "echo", "owner": "admin", "created_at": datetime(2026, 1, 1, tzinfo=UTC)}
    failed = TaskView.model_validate(plain | {"id": "task-root", "name": "root", "status": "failed", "reason": "bug"})
    text = ended(
        siblings=(failed,), status="failed", reason="upstream_failed", error="root failed.", depends_on=("task-root",)
    )
    assert commands(text) == [("Details", "tunefleet show task-root"), ("Retry the rest", "tunefleet retry wf-1")]
    skipped = failed.model_copy(update={"status": "skipped", "reason": "condition_unmet"})
    text = ended(siblings=(skipped,), status="skipped", reason="upstream_skipped", depends_on=("task-root",))
    assert commands(text) == [("Details", "tunefleet show task-root")], "nothing is left to run"
