"""`status.json`: whole, final once final, cheap in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunefleet.schemas.job_folder import JobStatus
from tunefleet.trainer_control.journal import status as module
from tunefleet.trainer_control.journal.status import StatusFile


def read(folder: Path) -> dict[str, Any]:
    status: dict[str, Any] = json.loads((folder / "status.json").read_text())
    JobStatus.model_validate(status)
    return status


def test_a_change_of_state_is_on_disk_at_once(tmp_path: Path) -> None:
    status = StatusFile(tmp_path)
    status.write(state="running", phase="training", step=3)
    assert (read(tmp_path)["state"], read(tmp_path)["step"]) == ("running", 3)


def test_an_update_waits_for_its_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    status = StatusFile(tmp_path)
    status.write(state="running")
    status.update(step=7, values={"loss": 1.0})
    status.flush_if_due()
    assert read(tmp_path)["step"] == 0
    now[0] += 1.0
    status.flush_if_due()
    assert read(tmp_path)["step"] == 7
    status.update(values={"eval_loss": 2.0})
    status.flush()
    assert read(tmp_path)["values"] == {"loss": 1.0, "eval_loss": 2.0}


def test_what_was_logged_is_there_however_it_is_asked_for(tmp_path: Path) -> None:
    status = StatusFile(tmp_path)
    status.log(3, {"loss": 2.0, "lr": 0.1}, epoch=0.5)
    status.log(4, {"loss": 1.0})
    assert (status.fields["step"], status.fields["values"]) == (4, {"loss": 1.0, "lr": 0.1, "epoch": 0.5})
    status.log(5, {"loss": 0.5})
    status.update(step=6)
    assert (status.fields["step"], status.fields["values"]["loss"]) == (6, 0.5)
    status.log(7, {"loss": 0.25})
    status.flush_if_due()
    assert (read(tmp_path)["step"], read(tmp_path)["values"]["loss"]) == (7, 0.25)
    status.log(8, {"loss": 0.125})
    status.flush()
    assert read(tmp_path)["step"] == 8
    status.log(9, {})
    status.write(state="completed")
    assert read(tmp_path)["step"] == 9
    status.log(10, {"loss": 0.0})
    assert (status.fields["step"], status.fields["values"]["loss"]) == (9, 0.125)


def test_what_was_logged_after_the_end_is_none_of_the_next_training(tmp_path: Path) -> None:
    status = StatusFile(tmp_path)
    status.write(state="completed", step=9)
    status.log(9, {"eval_loss": 1.0})
    status.begin_again()
    assert (status.fields["state"], status.fields["values"]) == ("starting", {})


def test_a_final_state_stays(tmp_path: Path) -> None:
    status = StatusFile(tmp_path)
    status.write(state="aborted", intent="abort")
    status.fail("too late", "bug", "traceback")
    status.update(step=99)
    status.flush()
    assert (read(tmp_path)["state"], read(tmp_path)["error"], read(tmp_path)["step"]) == ("aborted", None, 0)


@pytest.mark.parametrize(("intent", "state"), [(None, "completed"), ("stop", "stopped")])
def test_the_proper_end_says_whether_somebody_asked_for_it(tmp_path: Path, intent: str | None, state: str) -> None:
    status = StatusFile(tmp_path)
    status.write(state="running", intent=intent)
    status.finish()
    assert read(tmp_path)["state"] == state


def test_a_failure_keeps_sentence_kind_and_traceback(tmp_path: Path) -> None:
    status = StatusFile(tmp_path)
    status.fail("No column 'text'.", "input", "Traceback …")
    found = read(tmp_path)
    assert (found["state"], found["error"], found["error_kind"]) == ("failed", "No column 'text'.", "input")


def test_a_copy_that_cannot_be_written_does_not_matter(tmp_path: Path) -> None:
    status = StatusFile(tmp_path, mirrors=[tmp_path / "missing" / "status.json"])
    copy = tmp_path / "copy.json"
    status.add_mirror(copy)
    status.write(state="running")
    assert json.loads(copy.read_text()) == read(tmp_path)


def test_no_part_file_stays_behind(tmp_path: Path) -> None:
    status = StatusFile(tmp_path)
    status.write(state="running")
    status.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]
