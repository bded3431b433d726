"""The command board: what was asked acts once, and its outcome can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunefleet.trainer_control.control.command_queue import ClosedError, CommandQueue, UnknownCommandError


def test_the_training_thread_sees_a_command_by_one_attribute(tmp_path: Path) -> None:
    board = CommandQueue(tmp_path)
    assert not board.armed
    item = board.submit("save_checkpoint")
    assert board.armed
    assert [command.command_id for command in board.take()] == [item.command_id]
    assert not board.armed


def test_commands_are_taken_in_the_order_in_which_they_came() -> None:
    board = CommandQueue()
    for name in ("save_checkpoint", "graceful_stop", "abort"):
        board.submit(name)
    assert [command.command for command in board.take()] == ["save_checkpoint", "graceful_stop", "abort"]


def test_a_command_delivered_twice_acts_once(tmp_path: Path) -> None:
    board = CommandQueue(tmp_path)
    board.submit("save_checkpoint", command_id="cmd-1")
    assert board.submit("save_checkpoint", command_id="cmd-1").command_id == "cmd-1"
    assert len(board.take()) == 1
    board.submit("save_checkpoint", command_id="cmd-1")
    assert not board.armed


def test_it_acts_once_even_across_a_restart(tmp_path: Path) -> None:
    first = CommandQueue(tmp_path)
    first.submit("save_checkpoint", command_id="cmd-1")
    first.take()
    first.applied("cmd-1", 7, saving=True)
    for command_id in first.take_saving():
        first.durable(command_id, "checkpoint-7")
    second = CommandQueue(tmp_path)
    item = second.submit("save_checkpoint", command_id="cmd-1")
    assert (item.state, item.step, item.checkpoint) == ("durable", 7, "checkpoint-7")
    assert not second.armed


@pytest.mark.parametrize("came", [True, False])
def test_a_pause_that_did_not_hold_acts_again(tmp_path: Path, came: bool) -> None:
    first = CommandQueue(tmp_path)
    first.submit("pause", command_id="pause-1")
    if came:
        first.take()
        first.applied("pause-1", 7, saving=True)
        first.durable("pause-1", "checkpoint-7")
        assert first.submit("pause", command_id="pause-1").state == "durable", "it is about to end"
    else:
        first.close("the training was aborted")
    # Killed then, and launched again.
    second = CommandQueue(tmp_path)
    assert second.submit("pause", command_id="pause-1").state == "pending"
    second.submit("pause", command_id="pause-1")
    assert [item.command_id for item in second.take()] == ["pause-1"]


def test_what_a_killed_process_had_not_done_has_failed(tmp_path: Path) -> None:
    board = CommandQueue(tmp_path)
    board.submit("save_checkpoint", command_id="waiting")
    board.submit("save_checkpoint", command_id="begun")
    board.applied("begun", 3, saving=True)
    again = CommandQueue(tmp_path)
    states = [again.state(command_id) for command_id in ("waiting", "begun")]
    assert [(item.state, item.message) for item in states if item] == [
        ("failed", "the process ended before it was done")
    ] * 2


def test_closing_fails_what_waits_and_refuses_the_rest(tmp_path: Path) -> None:
    board = CommandQueue(tmp_path)
    item = board.submit("graceful_stop")
    board.close("training had ended")
    assert (item.state, item.message) == ("failed", "training had ended")
    with pytest.raises(ClosedError, match="training had ended"):
        board.submit("abort")
    board.open()
    board.submit("abort")
    assert board.wants("abort")


def test_an_unknown_command_is_refused() -> None:
    with pytest.raises(UnknownCommandError):
        CommandQueue().submit("explode")


def test_a_save_that_failed_says_so() -> None:
    board = CommandQueue()
    item = board.submit("save_checkpoint")
    board.applied(item.command_id, 4, saving=True)
    assert board.take_saving() == [item.command_id]
    assert board.take_saving() == []
    board.failed(item.command_id, "No space left on device")
    assert (item.state, item.step, item.message) == ("failed", 4, "No space left on device")
