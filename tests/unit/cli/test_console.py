from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from tunefleet.cli import console
from tunefleet.schemas.api import FaultView


def drawn(width: int) -> list[str]:
    screen = Console(file=io.StringIO(), width=width, theme=console._THEME)
    listing = console.table("task", "size", "note", right=("size",), wide="note")
    listing.add_row("task-0123456789ab", "7", console.cut("the dataset has no column named question; it has text"))
    screen.print(listing)
    return [line.rstrip() for line in screen.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_only_the_wide_column_is_cut() -> None:
    head, row = drawn(50)
    assert head == "TASK               SIZE  NOTE"
    assert row.startswith("task-0123456789ab     7  the dataset has no")
    assert row.endswith("…")
    assert drawn(200)[1].endswith("it has text")


def test_a_pipe_gets_whole_lines_without_colour(capsys: pytest.CaptureFixture[str]) -> None:
    listing = console.table("a", "b")
    listing.add_row("x" * 300, console.status_text("failed"))
    console.say(listing)
    said = capsys.readouterr().out
    assert said.splitlines()[1] == "x" * 300 + "  failed"
    assert not any(line != line.rstrip() for line in said.splitlines())
    console.say("[not markup]", style="dim")
    assert capsys.readouterr().out == "[not markup]\n"


def test_json_of_models_and_lists(capsys: pytest.CaptureFixture[str]) -> None:
    fault = FaultView(path="spec.x", message="ä")
    console.print_json(fault)
    assert json.loads(capsys.readouterr().out)["message"] == "ä"
    console.print_json([fault, fault])
    assert len(json.loads(capsys.readouterr().out)) == 2
