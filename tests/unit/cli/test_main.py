from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
import typer

from tunefleet.cli import main, options
from tunefleet.cli.exit_codes import ExitCode, exit_code_of
from tunefleet.cli.lazy_group import examples_of
from tunefleet.errors import (
    ArtifactError,
    AuthError,
    DataError,
    Fault,
    IllegalTransition,
    MachineError,
    NotFoundError,
    QuotaError,
    SpecError,
    StoreError,
    TooManyError,
    TunefleetError,
    UnreachableError,
)

NO_EXAMPLES = {"up"}


@pytest.mark.parametrize("entry", main.Root.table, ids=lambda entry: entry.name)
def test_the_table_says_what_the_commands_say(entry: main.Entry) -> None:
    module, _, attribute = entry.target.partition(":")
    target = getattr(import_module(f"tunefleet.cli.{module}"), attribute)
    if isinstance(target, typer.Typer):
        assert target.info.help == entry.help
        return
    first = (inspect.getdoc(target) or "").splitlines()[0]
    assert first == entry.help or entry.name == "up"
    assert examples_of(target) or entry.name in NO_EXAMPLES
    assert all("tunefleet" in line for line in examples_of(target))


@pytest.mark.parametrize("entry", main.Root.table, ids=lambda entry: entry.name)
def test_every_command_has_json_and_a_help(entry: main.Entry, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([entry.name, "--help"]) == 0
    said = capsys.readouterr().out
    assert entry.name in said
    command = main.Root.load(entry.name)
    leaves = list(getattr(command, "commands", {}).values()) or [command]
    for leaf in leaves:
        has_json = any("--json" in parameter.opts for parameter in leaf.params)
        assert has_json or entry.name in {"server", "worker", "agent", "completion"}, leaf.name


def test_help_is_plain_where_there_is_no_terminal_and_framed_where_there_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main.run(["--help"]) == 0
    plain = capsys.readouterr().out
    assert "Train:" in plain
    assert "─" not in plain
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main.run(["submit", "--help"]) == 0
    framed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "╭─ Options" in framed
    assert "tunefleet submit sft.yaml --follow" in framed
    assert main.run([]) == 2 or "Usage" in capsys.readouterr().out


def test_a_wrong_command_line_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["sbmit"]) == ExitCode.USAGE
    assert "Did you mean 'submit'" in capsys.readouterr().err
    assert main.run(["ls", "--statos", "x"]) == ExitCode.USAGE
    assert main.run(["submit"]) == ExitCode.USAGE
    capsys.readouterr()
    assert main.run(["ls", "--status", "bogus"]) == ExitCode.USAGE
    assert "'queued', 'dispatched', 'running'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SpecError([Fault("", "x")]), 3),
        (DataError("x"), 3),
        (ArtifactError("x"), 3),
        (NotFoundError("x"), 4),
        (IllegalTransition("x"), 5),
        (AuthError("x"), 6),
        (QuotaError("x"), 5),
        (UnreachableError("x"), 7),
        (TooManyError("x", retry_after_s=1), 7),
        (MachineError("x"), 8),
        (StoreError("x"), 8),
        (TunefleetError("x"), 1),
    ],
)
def test_exit_codes(error: TunefleetError, code: int) -> None:
    assert exit_code_of(error) == code


def test_the_chosen_server_is_forgotten_after_the_command(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    assert main.run(["--url", "ftp://x", "ls"]) == ExitCode.INVALID
    assert "not a server URL" in capsys.readouterr().err
    assert options.chosen_url.get() is None


@pytest.mark.parametrize(
    ("shell", "part"), [("bash", "complete -o default"), ("zsh", "#compdef"), ("fish", "complete ")]
)
def test_completion_scripts(shell: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["completion", shell]) == 0
    assert part in capsys.readouterr().out


def test_the_shell_completes_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_TUNEFLEET_COMPLETE", "complete_bash")
    for words, index, wanted in (("tunefleet sub", 1, "submit"), ("tunefleet artifacts g", 2, "get")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(index))
        assert main.run([]) == 0
        assert capsys.readouterr().out.split() == [wanted]
