"""What a full disk, an odd value or a second training does to the reports of a job: nothing worse than it must."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunefleet.schemas.job_folder import JobStatus
from tunefleet.schemas.journal import ANY_RECORD, EventRecord
from tunefleet.trainer_control import files
from tunefleet.trainer_control.control import command_queue as board_module
from tunefleet.trainer_control.control.command_queue import CommandQueue
from tunefleet.trainer_control.journal import status as status_module
from tunefleet.trainer_control.journal.status import StatusFile
from tunefleet.trainer_control.journal.writer import JournalWriter, plain_values


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def circle() -> dict[str, Any]:
    data: dict[str, Any] = {}
    data["self"] = data
    return data


class Scalar:
    """What NumPy and torch give for one number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def item(self) -> float:
        return self.value


def test_values_that_are_no_numbers_can_be_written_into_the_status(tmp_path: Path) -> None:
    values = plain_values({"loss": float("nan"), "grad_norm": float("inf"), "lr": 0.1, "n": 3})
    status = StatusFile(tmp_path)
    status.update(values=values)
    status.finish()
    found = JobStatus.model_validate_json((tmp_path / "status.json").read_text())
    assert found.state == "completed"
    assert json.loads((tmp_path / "status.json").read_text())["values"] == {
        "loss": "NaN",
        "grad_norm": "Infinity",
        "lr": 0.1,
        "n": 3,
    }


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        ({"a": float("-inf")}, {"a": "-Infinity"}),
        ({"a": Scalar(1.5), "b": [Scalar(float("nan"))]}, {"a": 1.5, "b": ["NaN"]}),
        ({"a": Path("/x")}, {"a": "/x"}),
        ({3: "three", (1, 2): "pair"}, {"3": "three", "(1, 2)": "pair"}),
        ({"text": "\ud800 half a character"}, {"text": "\ud800 half a character"}),
    ],
)
def test_odd_data_of_an_event_becomes_json(tmp_path: Path, data: dict[Any, Any], kept: dict[str, Any]) -> None:
    writer = JournalWriter(tmp_path, "launch-1")
    writer.event("odd", "something odd", data=data)
    writer.close()
    assert json.loads(writer.path.read_text().splitlines()[1])["data"] == kept


def test_a_record_that_cannot_be_written_takes_no_other_with_it(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, "launch-1")
    writer.metric(1, {"loss": 1.0})
    writer.event("odd", "a circle", data=circle())
    writer.metric(2, {"loss": 1.0})
    writer.close()
    records = [ANY_RECORD.validate_json(line) for line in writer.path.read_text().splitlines()]
    assert [(record.seq, record.type) for record in records] == [
        (0, "launch"),
        (1, "metric"),
        (2, "event"),
        (3, "metric"),
    ]
    assert isinstance(records[2], EventRecord)
    assert records[2].name == "journal.unwritable"


def test_an_end_that_could_not_be_written_is_not_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = StatusFile(tmp_path)
    status.write(state="running", intent="stop")
    with monkeypatch.context() as patch:
        patch.setattr(status_module, "write_json", full)
        with pytest.raises(OSError, match="No space left"):
            status.finish()
    assert not status.final
    status.fail("The disk is full.", "disk")
    assert JobStatus.model_validate_json((tmp_path / "status.json").read_text()).error_kind == "disk"


def test_a_command_acts_even_if_its_outcome_cannot_be_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(board_module, "write_json", full)
    board = CommandQueue(tmp_path)
    item = board.submit("graceful_stop")
    assert board.armed
    assert board.take() == [item]
    board.applied(item.command_id, 3)
    assert item.state == "applied"
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


@pytest.mark.parametrize(
    ("command", "act", "state"),
    [
        ("graceful_stop", lambda board: board.applied("cmd-1", 3), "applied"),
        ("abort", lambda board: board.applied("cmd-1", 3), "applied"),
        ("abort", lambda board: None, "failed"),
        ("graceful_stop", lambda board: None, "failed"),
        ("save_and_stop", lambda board: board.applied("cmd-1", 3, saving=True), "failed"),
    ],
)
def test_the_next_launch_knows_what_was_done(
    tmp_path: Path, command: str, act: Callable[[CommandQueue], None], state: str
) -> None:
    board = CommandQueue(tmp_path)
    board.submit(command, command_id="cmd-1")
    act(board)
    found = CommandQueue(tmp_path).state("cmd-1")
    assert found is not None
    assert found.state == state


def test_a_save_that_never_came_has_failed_when_the_training_ends() -> None:
    board = CommandQueue()
    board.submit("save_checkpoint", command_id="cmd-1")
    board.take()
    board.applied("cmd-1", 3, saving=True)
    board.close("the training was aborted")
    found = board.state("cmd-1")
    assert found is not None
    assert (found.state, found.message) == ("failed", "the training was aborted")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"null"])
def test_a_file_without_an_object_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    assert files.read_json(tmp_path / "x.json") is None
    assert files.read_json(tmp_path / "x.json" / "inner") is None
