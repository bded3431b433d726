"""The manual page `tunefleet(1)`, written from the commands themselves: `make man`, and with every `make docs`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import examples_of
from tunefleet.cli.main import Root, root

ROOT = Path(__file__).resolve().parent.parent
PATH = ROOT / "src/man/tunefleet.1"


def _plain(text: str) -> str:
    """Return a text as roff takes it literally: no line is a request, no character a command."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    text = "".join(sign if sign.isascii() else f"\\[u{ord(sign):04X}]" for sign in text)
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def _text(text: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", inspect.cleandoc(text).partition("\f")[0].strip())):
        if number:
            yield ".PP"
        yield _plain(" ".join(paragraph.split()))


def arguments(command: Any) -> list[str]:
    """Return the arguments of a command as its synopsis shows them: optional ones in brackets."""
    found = [each for each in command.params if each.param_type_name == "argument"]
    names = [(each.metavar or each.name.upper(), each.required) for each in found]
    return [name if required or name.startswith("[") else f"[{name}]" for name, required in names]


def _command(command: Any, words: str) -> Iterator[str]:
    """Yield one command with its options and examples, or those below it."""
    if hasattr(command, "commands"):
        for name, below in command.commands.items():
            yield from _command(below, f"{words} {name}")
        return
    yield f'.SS "{_plain(" ".join([words, *arguments(command)]))}"'
    yield from _text(command.help or "")
    for option in (each for each in command.params if each.param_type_name == "option"):
        yield ".TP"
        yield f"\\fB{_plain(', '.join([*option.opts, *option.secondary_opts]))}\\fR"
        yield _plain(" ".join(str(option.help or "").split())) or "\\&"
    if lines := examples_of(command.callback):
        yield from (".PP", "Examples:", ".PP", ".nf", ".RS 4", *map(_plain, lines), ".RE", ".fi")


def page() -> str:
    """Return the text of the page; it names no version, so that it changes with the commands alone."""
    lines = [
        '.\\" Written by `make man` from src/tunefleet/cli; edit the docstrings there.',
        '.TH TUNEFLEET 1 "" "Tunefleet" "User Commands"',
        ".SH NAME",
        "tunefleet \\- fine\\-tune language models on the machines you have",
        ".SH SYNOPSIS",
        ".B tunefleet",
        "[\\fB\\-\\-url\\fR \\fIURL\\fR] \\fICOMMAND\\fR [\\fIARGUMENT\\fR]...",
        ".SH DESCRIPTION",
        *_text(root.__doc__ or ""),
    ]
    panel = ""
    for entry in Root.table:
        if entry.panel != panel:
            panel = entry.panel
            lines.append(f'.SH "{_plain(panel.upper())}"')
        lines += _command(Root.load(entry.name), f"tunefleet {entry.name}")
    lines.append('.SH "EXIT STATUS"')
    for code in ExitCode:
        lines += [".TP", f"\\fB{code.value}\\fR", _plain(code.name.lower().replace("_", " "))]
    return "\n".join(lines) + "\n"
