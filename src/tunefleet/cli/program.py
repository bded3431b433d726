"""The name of this program in the shell that called it: commands that the CLI prints work where they are printed.

Texts name commands as `tunefleet …`. In a clone only `.venv/bin/tunefleet` exists, so the console, the help and usage
errors pass what they print through `as_called`.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, Final

NAME: Final = "tunefleet"
_COMMAND: Final = re.compile(r"(?<![\w./@=-])tunefleet(?= [a-z])")


def program() -> str:
    """Return `tunefleet` if the shell finds this program under that name, else the path that it was called by."""
    called = Path(sys.argv[0])
    # Another name is not this program but one that uses it, such as a test runner.
    if called.stem.lower() != NAME:
        return NAME
    found = shutil.which(NAME)
    if found is not None and Path(found).resolve() == called.resolve():
        return NAME
    return shlex.quote(str(called))


def commands_in(text: str) -> list[tuple[int, int]]:
    """Return where `tunefleet` starts a command in a text, if the shell needs another name for it."""
    if f"{NAME} " not in text or program() == NAME:
        return []
    return [found.span() for found in _COMMAND.finditer(text)]


def as_called(text: str) -> str:
    """Return a text whose commands start with `program`."""
    for start, end in reversed(commands_in(text)):
        text = text[:start] + program() + text[end:]
    return text


def rename_in_help(command: Any) -> Any:
    """Put `program` into the help of a Typer command or group, and return it."""
    if program() == NAME:
        return command
    for each in (command, *getattr(command, "params", ()), *getattr(command, "commands", {}).values()):
        for field in ("help", "short_help", "epilog"):
            if text := getattr(each, field, None):
                setattr(each, field, as_called(text))
    for below in getattr(command, "commands", {}).values():
        rename_in_help(below)
    return command
