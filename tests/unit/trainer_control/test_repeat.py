"""Work that is repeated beside a training."""

from __future__ import annotations

import logging
import threading

import pytest

from tunefleet.trainer_control import files


def test_a_failure_is_told_once_until_it_has_worked_in_between(caplog: pytest.LogCaptureFixture) -> None:
    stop, turns = threading.Event(), iter([OSError(), OSError(), None, OSError(), OSError()])

    def work() -> None:
        try:
            fault = next(turns)
        except StopIteration:
            stop.set()
            return
        if fault is not None:
            raise fault

    files.until(stop, 0.0, work, "The folder cannot be read", logging.getLogger("tunefleet.test"))
    assert caplog.messages == ["The folder cannot be read; trying again"] * 2
