"""The worker's folder: one worker at a time, one identity, attempts that survive."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunefleet.errors import MachineError
from tunefleet.schemas.worker_link import Offer
from tunefleet.worker.state import AttemptRecord, StateFolder


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    folder = StateFolder(tmp_path / "results")
    folder.open()
    return folder


def _record(attempt_id: str = "att-1") -> AttemptRecord:
    offer = Offer(token=f"{attempt_id}.mac", task_id="t", workflow_id="w", attempt=1, kind="sft", name="n", spec={})
    return AttemptRecord(offer=offer)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(MachineError, match="cannot be written"):
        StateFolder(blocked / "results").open()


def test_what_a_killed_worker_was_writing_is_removed_by_the_next(state: StateFolder) -> None:
    """An attempt that ends meanwhile is never written again, and its draft would stay."""
    state.keep(_record("att-1"))
    attempts = state.root / "attempts"
    (attempts / ".att-2.json.draft").write_text("{")
    (state.root / ".owner.json.draft").write_text("")
    state.close()
    again = StateFolder(state.results_dir)
    again.open()
    assert [record.attempt_id for record in again.attempts()] == ["att-1"]
    assert sorted(path.name for path in state.root.rglob("*.draft")) == []


def test_the_identity_is_made_once(state: StateFolder) -> None:
    made = state.worker_id(None), state.state_id()
    again = StateFolder(state.results_dir)
    assert (again.worker_id(None), again.state_id()) == made


def test_a_wanted_id_is_kept_for_the_next_time(state: StateFolder) -> None:
    assert state.worker_id("gpu-1") == "gpu-1"
    assert state.worker_id(None) == "gpu-1"


@pytest.mark.parametrize("bad", ["", "a/b", "../x", "x" * 65, "ä"])
def test_an_id_that_cannot_be_one_is_refused(state: StateFolder, bad: str) -> None:
    with pytest.raises(MachineError, match="not a valid ID"):
        state.worker_id(bad)


def test_attempts_are_kept_privately_until_they_are_forgotten(state: StateFolder) -> None:
    state.keep(_record())
    file = state.root / "attempts" / "att-1.json"
    assert file.stat().st_mode & 0o077 == 0, "it holds a token"
    assert state.attempts() == [_record()]
    state.forget("att-1")
    assert state.attempts() == []


def test_a_record_that_cannot_be_read_is_set_aside(state: StateFolder) -> None:
    state.keep(_record())
    (state.root / "attempts" / "att-2.json").write_text("{torn")
    assert [record.attempt_id for record in state.attempts()] == ["att-1"]
    assert (state.root / "attempts" / "att-2.unreadable").exists()


def test_an_attempt_id_cannot_lead_out_of_the_folder(state: StateFolder) -> None:
    with pytest.raises(MachineError, match="attempt id"):
        state.keep(_record("../../evil"))
