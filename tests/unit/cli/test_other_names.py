"""What users of other tools type: `list` is `ls` everywhere, and a command of another tool names ours."""

from __future__ import annotations

import pytest

from tunefleet.cli import main


@pytest.mark.parametrize(
    "noun", ["workers", "models", "artifacts", "keys", "projects", "data", "federation", "control"]
)
def test_list_and_ls_are_one(noun: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for name in ("ls", "list"):
        assert main.run([noun, name, "--help"]) == 0
        told.append(capsys.readouterr().out.partition("\n\n")[2])
    assert told[0] == told[1]


def test_list_alone_lists_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["list", "--help"]) == 0
    assert "List runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("ps", "ls"),
        ("status", "ls"),
        ("queue", "ls"),
        ("launch", "submit FILE"),
        ("apply", "submit FILE"),
        ("task", "ls"),
    ],
)
def test_a_command_of_another_tool_names_ours(typed: str, ours: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([typed]) == 2
    assert f"No such command '{typed}'. Use `tunefleet {ours}`." in capsys.readouterr().err
