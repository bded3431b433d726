"""What the command line prints works in the shell that printed it, also where only a path leads to the program."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.text import Text

from tunefleet.cli import console, program
from tunefleet.cli.main import Root

_HINT = "Run `tunefleet up`, then: tunefleet submit FILE. Tunefleet stays; so do my-tunefleet ls and tunefleet.db."
_BIN = Path(sys.executable).parent


@pytest.fixture
def called_by_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A program in a folder that is not on the PATH."""
    monkeypatch.setattr(sys, "argv", [".venv/bin/tunefleet", "ls"])
    monkeypatch.setenv("PATH", str(tmp_path))
    return ".venv/bin/tunefleet"


def test_a_command_starts_with_the_path_that_the_program_was_called_by(called_by_path: str) -> None:
    assert program.as_called(_HINT) == (
        "Run `.venv/bin/tunefleet up`, then: .venv/bin/tunefleet submit FILE. Tunefleet stays; so do my-tunefleet ls "
        "and tunefleet.db."
    )


def test_a_program_on_the_path_keeps_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    real = tmp_path / "tunefleet"
    real.touch(mode=0o755)
    (tmp_path / "bin/tunefleet").symlink_to(real)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "argv", [str(real)])
    assert program.as_called(_HINT) == _HINT
    other = tmp_path / "another place/tunefleet"
    monkeypatch.setattr(sys, "argv", [str(other)])
    assert program.program() == shlex.quote(str(other)), "the program on the PATH is another one"


def test_texts_cells_and_help_are_printed_this_way(called_by_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    console.say(Text.assemble("Follow: ", ("tunefleet follow x", "dim")))
    listing = console.table("what", "how")
    listing.add_row("a", "tunefleet why a")
    listing.add_row("b", console.cut("`tunefleet why b`"))
    console.say(listing)
    console.say(console.facts([("Next", "tunefleet show x")]))
    printed = capsys.readouterr().out
    assert printed.count(f"{called_by_path} ") == 4
    assert "…" not in printed
    assert Root.load("submit").epilog.count(f"{called_by_path} submit") == 4


@pytest.mark.proof
@pytest.mark.parametrize("arguments", [["ls"], ["ps"], ["up", "--help"], ["clone"]])
def test_a_printed_command_runs_in_the_shell_that_printed_it(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/bin").symlink_to(_BIN)
    shell = {
        "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TUNEFLEET_HOME": str(tmp_path), "COLUMNS": "300",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    said = subprocess.run(
        [".venv/bin/tunefleet", *arguments], cwd=tmp_path, env=shell, capture_output=True, text=True, check=False
    )
    printed = said.stdout + said.stderr
    # In backticks, in the quotes of a usage error, or a line of examples.
    commands = {
        line.strip() for line in re.findall(r"(?:`|'|^ {2,})(\S*tunefleet [a-z][^`'\n]*)", printed, re.MULTILINE)
    }
    assert commands, printed
    assert [command for command in commands if not command.startswith(".venv/bin/tunefleet ")] == []
    for words in map(str.split, commands):
        shown = [word for word in words[1:] if word.islower() and not word.startswith((".", "-"))][:1]
        found = subprocess.run(
            [words[0], *shown, "--help"], cwd=tmp_path, env=shell, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, f"{words}: {found.stderr}"
