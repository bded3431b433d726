"""Holds each command line of a page against the program that it calls, without running it."""

from __future__ import annotations

import io
import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stderr
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import typer

from scripts import check_docs
from tunefleet.cli import main as cli

_USAGE_ERROR: Final[Any] = typer.BadParameter.__base__
_ROOT: Final = Path(__file__).resolve().parent.parent.parent
_ENDS: Final = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "<"})
_SET: Final = re.compile(r"[A-Z_][A-Z0-9_]*=")
_STANDS_FOR: Final = {"N": "1", "STEP": "1", "VERSION": "1", "SECONDS": "1"}
_OURS: Final = frozenset({"tunefleet", ".venv/bin/tunefleet"})
_PYTHONS: Final = frozenset({"python", "python3", ".venv/bin/python"})


def simple_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each program that a line starts, without variables before it and redirections."""
    lexer = shlex.shlex(text.split("\n", maxsplit=1)[0], posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    redirected = False
    for word in lexer:
        if set(word) <= set("|&;<>()") and word:
            if word in {"|", "||", "&&", ";", "&"}:
                yield from _without_variables(words)
                words = []
            redirected = word in {">", ">>", "<", "<<"}
        elif redirected:
            redirected = False
        else:
            words.append(word)
    yield from _without_variables(words)


def _without_variables(words: list[str]) -> Iterator[list[str]]:
    while words and (_SET.match(words[0]) or words[0] in {"exec", "sudo"}):
        words = words[1:]
    if words:
        yield words


def fault(text: str) -> str | None:
    """Return what of a line does not exist: a command, an option, a module, an extra, a script, a target."""
    for words in simple_commands(text):
        found = _fault_of(words)
        if found:
            return f"`{' '.join(words)}`: {found}"
    return None


def _fault_of(words: list[str]) -> str | None:
    program, *rest = words
    if program in _OURS:
        return tunefleet_fault(rest)
    if program in _PYTHONS and rest[:1] == ["-m"]:
        return _module_fault(rest[1], rest[2:])
    if program in _PYTHONS and rest and rest[0].endswith(".py"):
        return _script_fault(rest[0])
    if program == "make":
        return None if rest[0] in check_docs.make_targets() else f"{rest[0]} is no target"
    if program in {"sh", "cp"} and rest and rest[0].startswith(("deploy/", "examples/", "scripts/")):
        return _script_fault(rest[0])
    if program.endswith(".sh"):
        return _script_fault(program)
    if program.rpartition("/")[2] == "pip":
        return _extras_fault(rest)
    return None


def _script_fault(name: str) -> str | None:
    ours = name.startswith(("deploy/", "examples/", "scripts/", "bench/"))
    return f"{name} does not exist" if ours and not (_ROOT / name).exists() else None


def _module_fault(module: str, rest: list[str]) -> str | None:
    if not module.startswith("tunefleet"):
        return None
    if find_spec(module) is None:
        return f"{module} does not exist"
    # The server's `__main__` only begins its process, whose parser this is.
    places = [name for name in (f"{module}.__main__", f"{module}.process") if find_spec(name)] or [module]
    parser = next((found for name in places if (found := getattr(import_module(name), "_parser", None))), None)
    if parser is None:
        return None
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            parser().parse_args(rest)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    return None


def _extras_fault(words: list[str]) -> str | None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = set(project["optional-dependencies"])
    for word in words:
        asked = re.match(r"(?:tunefleet|\.)\[([\w,-]+)\]", word)
        unknown = set(asked[1].split(",")) - known if asked else set()
        if unknown:
            return f"{', '.join(sorted(unknown))} is no extra of Tunefleet"
    return None


def tunefleet_fault(words: list[str]) -> str | None:
    """Parse the words behind `tunefleet` as the command line does, down to types and numbers of arguments."""
    if not words or words[0].startswith("-"):
        return check_docs.command_fault(words) if words else None
    if words[0] not in {entry.name for entry in cli.Root.table}:
        return f"{words[0]} is no command"
    command: Any = cli.Root.load(words[0])
    name, rest = words[0], words[1:]
    parent = typer.Context(typer.main.get_command(cli.app), info_name="tunefleet")
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        deeper = command.commands.get(rest[0])
        if deeper is None:
            return f"{rest[0]} is no command of {name}"
        parent = typer.Context(command, info_name=name, parent=parent)
        command, name, rest = deeper, rest[0], rest[1:]
    return _parse_fault(command, name, [_STANDS_FOR.get(word, word) for word in rest], parent)


def _parse_fault(command: Any, name: str, words: list[str], parent: typer.Context) -> str | None:
    try:
        with command.make_context(name, list(words), parent=parent):
            return None
    except typer.Exit:  # help, or the version
        return None
    except _USAGE_ERROR as error:
        # A file that only the reader has, or a value that stands for the reader's, is none of the page's faults.
        bad_value = isinstance(error, typer.BadParameter) and type(error).__name__ != "MissingParameter"
        return None if bad_value else error.format_message()
