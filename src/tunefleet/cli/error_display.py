"""Output of a failed command: one sentence and a hint; a traceback only with `TUNEFLEET_DEBUG`."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from pydantic import ValidationError
from rich.text import Text

from tunefleet.cli.console import err, json_text
from tunefleet.cli.exit_codes import ExitCode, exit_code_of
from tunefleet.errors import Fault, InputError, MachineError, SpecError, TunefleetError
from tunefleet.settings import ClientSettings, load
from tunefleet.validation_errors import summary


def report(error: Exception, *, as_json: bool = False) -> ExitCode:
    """Print an error to standard error and return the exit code for it."""
    if isinstance(error, ValidationError):
        # Replies of a server are checked by the client: what is left is a value of the command line.
        error = InputError(f"Invalid value: {summary(error)}.", hint="Run with --help to see the allowed values.")
    code = _code(error)
    if _debugging():
        traceback.print_exception(error, file=sys.stderr)
    if as_json:
        sys.stderr.write(json_text(_document(error, code)) + "\n")
    elif isinstance(error, SpecError):
        _print_faults(error)
    else:
        _print_sentence(error, code)
    return code


def _debugging() -> bool:
    try:
        return load(ClientSettings).debug
    except MachineError:
        # Invalid settings may be the very error that is reported.
        return False


def _code(error: Exception) -> ExitCode:
    if isinstance(error, TunefleetError):
        return exit_code_of(error)
    # Before `OSError`, of which `TimeoutError` is a subclass.
    if isinstance(error, TimeoutError):
        return ExitCode.TIMED_OUT
    return ExitCode.MACHINE if isinstance(error, OSError) else ExitCode.BUG


def _document(error: Exception, code: ExitCode) -> dict[str, object]:
    faults = error.faults if isinstance(error, SpecError) else ()
    return {
        "error": error.code if isinstance(error, TunefleetError) else type(error).__name__,
        "message": error.message if isinstance(error, TunefleetError) else str(error),
        "hint": error.hint if isinstance(error, TunefleetError) else None,
        "exit_code": int(code),
        "faults": [
            {"path": f.path, "message": f.message, "line": f.line, "column": f.column, "hint": f.hint} for f in faults
        ],
    }


def _print_sentence(error: Exception, code: ExitCode) -> None:
    console = err()
    head = Text("Error: ", style="bad")
    if isinstance(error, TunefleetError):
        console.print(head + Text(error.message))
        if error.hint:
            console.print(Text("       " + error.hint, style="dim"))
        return
    if code is not ExitCode.BUG:
        console.print(head + Text(str(error)))
        return
    console.print(head + Text(f"Unexpected error: {type(error).__name__}: {error}"))
    console.print(
        Text("       This is a bug. Run the command again with TUNEFLEET_DEBUG=1 and report the output.", style="dim")
    )


def _print_faults(error: SpecError) -> None:
    console = err()
    name = error.filename or "the workflow file"
    lines = _source(error.filename)
    count = len(error.faults)
    console.print(Text("Error: ", style="bad") + Text(f"{name} has {count} error{'s' if count != 1 else ''}."))
    for fault in error.faults:
        console.print()
        _print_fault(fault, name, lines)


def _source(filename: str | None) -> list[str]:
    if filename is None:
        return []
    try:
        # The file is read again: the error has positions only. It may be gone by now.
        return Path(filename).read_text(encoding="utf-8-sig", errors="replace").splitlines()
    except OSError:
        return []


def _print_fault(fault: Fault, name: str, lines: list[str]) -> None:
    console = err()
    position = f"{name}:{fault.line}:{fault.column}" if fault.line else name
    console.print(Text(position, style="head") + Text(f"  {fault.path}" if fault.path else "", style="dim"))
    if 0 < fault.line <= len(lines):
        number = f"{fault.line:>5} │ "
        # One column per character: a tab or a control character would shift the caret below.
        visible = "".join(each if each.isprintable() else " " for each in lines[fault.line - 1])
        source, at = _around(visible, fault.column - 1, console.width - len(number))
        console.print(Text(number, style="dim") + Text(source), soft_wrap=True)
        console.print(Text(" " * 6 + "│ ", style="dim") + Text(" " * max(0, at) + "^", style="bad"))
    console.print(Text("      " + fault.message, style="bad" if not fault.hint else "default"))
    if fault.hint:
        console.print(Text("      " + fault.hint, style="good"))


def _around(line: str, at: int, width: int) -> tuple[str, int]:
    """Return the part of a line around the column `at` that fits into `width`, and that column's new position."""
    if len(line) <= width:
        return line, at
    start = max(0, min(at - width // 2, len(line) - width))
    shown = line[start : start + width]
    shown = f"…{shown[1:]}" if start else shown
    return (f"{shown[:-1]}…" if start + width < len(line) else shown), at - start
