"""Where a launch begins: the newest checkpoint, or exactly the one that was asked for, and for all ranks the same."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.libraries import required
from tunefleet import trainer_control
from tunefleet.trainer_control import session as session_module
from tunefleet.trainer_control.checkpoints.manifest import finish_checkpoint, list_complete
from tunefleet.trainer_control.checkpoints.resume import ResumeError, await_decision, decide, protected_names, retain


def save(folder: Path, step: int, launch: str | None = None) -> Path:
    path = folder / "checkpoints" / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_text(f"weights of {step}")
    finish_checkpoint(path, launch=launch)
    return path


def job(folder: Path, launch: str = "launch-1", attempt: int = 1, from_step: int | None = None) -> dict[str, Any]:
    fields = {"job_id": "t", "launch": launch, "attempt": attempt, "from_step": from_step, "spec": {}}
    (folder / "job.json").write_text(json.dumps(fields))
    return fields


def steps(folder: Path) -> list[int]:
    return [checkpoint.step for checkpoint in list_complete(folder / "checkpoints")]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(session_module, "_sessions", {})
    opened = session_module._sessions
    yield
    for each in opened.values():
        each.close()


def test_a_step_that_is_asked_for_is_resumed_and_what_lies_beyond_is_set_aside(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step)
    decision = decide(tmp_path, job(tmp_path, from_step=10))
    assert decision.checkpoint is not None
    assert decision.checkpoint.step == 10
    assert steps(tmp_path) == [10]
    assert {path.name for path in (tmp_path / "checkpoints" / "superseded").iterdir()} == {
        "checkpoint-20",
        "checkpoint-30",
    }


def test_a_launch_after_a_crash_does_not_go_back_to_that_step_again(tmp_path: Path) -> None:
    save(tmp_path, 10)
    decide(tmp_path, job(tmp_path, from_step=10))
    save(tmp_path, 15)
    again = decide(tmp_path, job(tmp_path, launch="launch-2", from_step=10))
    assert again.checkpoint is not None
    assert again.checkpoint.step == 15
    asked_again = decide(tmp_path, job(tmp_path, launch="launch-3", attempt=2, from_step=10))
    assert asked_again.checkpoint is not None
    assert asked_again.checkpoint.step == 10


@pytest.mark.parametrize(
    ("step", "why"), [(7, "there is no such checkpoint"), (10, "model.safetensors does not match its digest")]
)
def test_a_step_that_cannot_be_resumed_fails_the_launch_and_moves_nothing(tmp_path: Path, step: int, why: str) -> None:
    (save(tmp_path, 10) / "model.safetensors").write_text("weights of 11")
    save(tmp_path, 20)
    job(tmp_path, from_step=step)
    with pytest.raises(ResumeError, match=why):
        trainer_control.open_session(tmp_path)
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["error_kind"]) == ("failed", "input")
    assert f"step {step}" in status["error"]
    assert steps(tmp_path) == [10, 20]


def test_other_ranks_report_nothing_and_resume_what_rank_0_has_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 10)
    (save(tmp_path, 20) / "model.safetensors").write_text("weights of 21")
    fields = job(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    opened: list[trainer_control.JobSession] = []
    other = threading.Thread(target=lambda: opened.append(trainer_control.open_session(tmp_path)))
    other.start()
    other.join(0.2)
    assert not opened, "it did not wait for rank 0"
    decide(tmp_path, fields)
    other.join(10)
    (session,) = opened
    assert (session.leads, session.rank) == (False, 1)
    assert session.resume is not None
    assert session.resume.step == 10
    session.journal.event("x", "said by nobody")
    session.status.write(state="running")
    session.journal.sync()
    assert not (tmp_path / "journal").exists()
    assert not (tmp_path / "status.json").exists()
    session.fail("the weather is bad", "bug")
    assert json.loads((tmp_path / "ranks" / "1.json").read_text())["error"] == "the weather is bad"
    assert await_decision(tmp_path, fields).checkpoint == session.resume


@pytest.mark.parametrize(("has_result", "begins"), [(False, 0), (True, 7)], ids=["without a result", "with a result"])
def test_a_launch_that_finds_the_result_supersedes_no_report(tmp_path: Path, has_result: bool, begins: int) -> None:
    """A worker was given up for lost while its job ended; the next attempt comes to the same folder."""
    journal = tmp_path / "journal"
    journal.mkdir()
    points = [json.dumps({"seq": step, "type": "metric", "step": step, "values": {"loss": 1.0}}) for step in (6, 7)]
    (journal / "launch-0.jsonl").write_text("\n".join([*points, '{"torn": ', "no line's end"]))
    if has_result:
        (tmp_path / "responses.json").write_text("{}")
    job(tmp_path, attempt=2)
    trainer_control.open_session(tmp_path).close()
    first = json.loads((journal / "launch-1.jsonl").read_text().splitlines()[0])
    assert (first["type"], first["from_step"], first["checkpoint"]) == ("launch", begins, None)


def test_what_somebody_reads_or_has_pinned_is_not_deleted(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        save(tmp_path, step)
    (tmp_path / "keep.json").write_text('{"uploading": ["checkpoint-10"], "pinned": ["checkpoint-20"]}')
    assert retain(tmp_path / "checkpoints", limit=1, keep=protected_names(tmp_path)) == ["checkpoint-30"]
    (tmp_path / "keep.json").write_text("{torn")
    assert retain(tmp_path / "checkpoints", limit=1, keep=protected_names(tmp_path)) == [
        "checkpoint-10",
        "checkpoint-20",
    ]


def test_the_best_checkpoint_is_found_where_it_lies_now(tmp_path: Path) -> None:
    required("transformers")
    from tunefleet.trainer_control.callbacks.checkpoint_callback import _find_best

    args: Any = SimpleNamespace(output_dir=str(tmp_path / "checkpoints"))
    save(tmp_path, 10)
    # Transformers drops the path of another machine when it loads the state; the step of the best remains.
    for path in ("/elsewhere/checkpoints/checkpoint-10", None):
        state: Any = SimpleNamespace(best_metric=0.5, best_global_step=10, best_model_checkpoint=path)
        _find_best(args, state)
        assert (state.best_model_checkpoint, state.best_metric) == (str(tmp_path / "checkpoints/checkpoint-10"), 0.5)
    lost: Any = SimpleNamespace(best_metric=0.5, best_global_step=7, best_model_checkpoint="/elsewhere/checkpoint-7")
    _find_best(args, lost)
    assert (lost.best_model_checkpoint, lost.best_metric, lost.best_global_step) == (None, None, None)


@pytest.mark.parametrize(
    ("made_by", "delivers", "parent"), [("l1", False, "l1"), (None, False, None), ("l1", True, None)]
)
def test_a_launch_says_which_one_has_made_what_it_goes_on_from(
    tmp_path: Path, made_by: str | None, delivers: bool, parent: str | None
) -> None:
    save(tmp_path, 10, made_by)
    if delivers:
        (tmp_path / "responses.json").write_text("{}")
        (tmp_path / "journal").mkdir()
        (tmp_path / "journal" / "l2.jsonl").write_text('{"type": "metric", "step": 20, "values": {}}\n')
    job(tmp_path, "l3")
    trainer_control.open_session(tmp_path).close()
    first = json.loads((tmp_path / "journal" / "l3.jsonl").read_text().splitlines()[0])
    assert (first["from_step"], first["parent"]) == (20 if delivers else 10, parent)
