from __future__ import annotations

import io
import sys

import pytest

from tunefleet.cli.tasks.log_command import LogOutput

STEP = "{'loss': '2.1', 'learning_rate': '0.0003'}"
LOG = f"one\n{STEP}\n{{'loss\n{{\nbar 10 %\rbar 20 %\n{STEP}"
SHOWN = "one\nloss 2.10  lr 3.0e-04\n{'loss\n{\nbar 10 %\rbar 20 %\nloss 2.10  lr 3.0e-04"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(monkeypatch: pytest.MonkeyPatch, to: io.StringIO, pieces: list[str], **options: bool) -> str:
    monkeypatch.setattr(sys, "stdout", to)
    output = LogOutput(**options)
    for piece in pieces:
        output.write(piece)
    output.close()
    return to.getvalue()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_no_line_is_lost_however_a_log_is_cut(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    pieces = [LOG[at : at + size] for at in range(0, len(LOG), size)]
    assert written(monkeypatch, Terminal(), pieces) == SHOWN


@pytest.mark.parametrize(("to", "options"), [(io.StringIO(), {}), (Terminal(), {"raw": True})])
def test_a_pipe_and_raw_get_what_was_written(
    monkeypatch: pytest.MonkeyPatch, to: io.StringIO, options: dict[str, bool]
) -> None:
    assert written(monkeypatch, to, [LOG], **options) == LOG


def test_a_progress_bar_is_shown_before_its_line_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    to = Terminal()
    monkeypatch.setattr(sys, "stdout", to)
    LogOutput().write("bar 10 %")
    assert to.getvalue() == "bar 10 %"
