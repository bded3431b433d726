"""Cancel: at the end of the step if the trainer hears, by signals if it does not."""

from __future__ import annotations

import pytest

from tests.integration.runtime.conftest import Launch, training, until
from tunefleet.errors import ConflictError, InputError, NotFoundError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import handle as module


def test_a_trainer_that_hears_ends_at_its_step(launch: Launch) -> None:
    handle = launch("train")
    until(lambda: training(handle))
    handle.cancel(10)
    handle.cancel(10)
    end = handle.wait(30)
    assert end is not None
    assert (end.outcome, end.reason, end.returncode) == ("cancelled", TaskReason.CANCELLED_BY_USER, 0)
    status = handle.status()
    assert status is not None
    assert (status.state, status.intent) == ("aborted", "abort")
    handle.cancel(10)


def test_a_trainer_that_is_still_loading_is_ended_by_a_signal(launch: Launch) -> None:
    handle = launch("look")
    handle.cancel(10)
    end = handle.wait(30)
    assert end is not None
    assert (end.outcome, end.reason, end.returncode) == ("cancelled", TaskReason.CANCELLED_BY_USER, -15)


def test_a_trainer_that_hears_nothing_is_killed(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AFTER_TERM_S", 0.3)
    handle = launch("train", stubborn=True)
    until(lambda: training(handle))
    handle.cancel(0.3)
    end = handle.wait(30)
    assert end is not None
    assert (end.outcome, end.returncode) == ("cancelled", -9)


def test_a_trainer_that_aborts_by_itself_was_not_cancelled(launch: Launch) -> None:
    handle = launch("train")
    until(lambda: training(handle))
    handle.command("abort")
    end = handle.wait(30)
    assert end is not None
    assert (end.outcome, end.reason) == ("cancelled", TaskReason.ABORTED)


def test_commands_are_answered_and_remembered(launch: Launch) -> None:
    handle = launch("train")
    until(lambda: training(handle))
    with pytest.raises(InputError, match="Unknown command"):
        handle.command("dance")
    reply = handle.command("graceful_stop", command_id="cmd-1")
    assert (reply.status, reply.command_id) == ("acknowledged", "cmd-1")
    end = handle.wait(30)
    assert end is not None
    assert (end.outcome, end.reason) == ("completed", TaskReason.STOPPED_EARLY)
    assert handle.command_state("cmd-1").state == "applied"
    with pytest.raises(NotFoundError):
        handle.command_state("cmd-2")
    with pytest.raises(ConflictError, match="accepts no commands now"):
        handle.command("abort")
