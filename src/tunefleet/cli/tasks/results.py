"""A task's result as rows of names and values; what it answered comes as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.schemas.api import TaskDetail

Row = tuple[str, RenderableType | None]

_ROWS: Final = 24
_LINES: Final = 8
_LINE_CHARACTERS: Final = 160
_LIST_CHARACTERS: Final = 80
_SAID_ELSEWHERE: Final = frozenset({"ok", "task_id", "shards"})
"""Of a result that is there, all know that it is good; the task and its parts stand above it."""


def executor_result(task: TaskDetail) -> dict[str, Any]:
    """Return what the executor found, without the envelope that the server puts around it; empty without a result."""
    envelope = task.result or {}
    inner = envelope.get("result")
    return inner if isinstance(inner, dict) else envelope


def rows(task: TaskDetail) -> list[Row]:
    """Return what a person wants to see of a task's result; `--json` has all of it."""
    # What an echo was given is its spec, and all that it counts stands there.
    dull = _SAID_ELSEWHERE | ({"echo", "count"} if task.kind == "echo" else set())
    found = _flat({name: value for name, value in executor_result(task).items() if name not in dull})
    more = len(found) - _ROWS
    return found if more <= 0 else [*found[:_ROWS], ("…", Text(f"and {more} more (--json has all)"))]


def _flat(tree: dict[str, Any], prefix: str = "") -> list[Row]:
    found: list[Row] = []
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value.keys() >= {"value", "low", "high"}:
            found.append((name, _measure(value)))
        elif isinstance(value, dict):
            found += _flat(value, f"{name}.")
        elif isinstance(value, list):
            found.append((name, _listed(value)))
        elif isinstance(value, bool):
            found.append((name, "yes" if value else "no"))
        elif not isinstance(value, (int, float)):
            found.append((name, None if value is None else Text(str(value))))
        else:
            found.append((name, formatting.number(value)))
    return found


def _measure(values: Mapping[str, Any]) -> Text:
    """Return a metric with its interval, as evaluations have them."""
    found = formatting.number(values["value"]) if values["value"] is not None else "not known"
    if values["low"] is not None and values["high"] is not None:
        found += f"  ({formatting.number(values['low'])} – {formatting.number(values['high'])})"
    return Text(f"{found}  n {values['n']:,}" if values.get("n") else found)


def _listed(values: Sequence[Any]) -> Text:
    outputs = [each["output"] for each in values if isinstance(each, dict) and "output" in each]
    entries = outputs if len(outputs) == len(values) else [_entry(each) for each in values if isinstance(each, dict)]
    readable = entries is outputs or all(0 < len(entry) <= _LINE_CHARACTERS for entry in entries)
    if entries and len(entries) == len(values) and readable:
        lines = [_line(entry) for entry in entries[:_LINES]]
        more = len(entries) - len(lines)
        return Text("\n".join([*lines, f"… and {more} more"] if more else lines))
    plain = ", ".join(str(value) for value in values if not isinstance(value, (dict, list)))
    if not any(isinstance(value, (dict, list)) for value in values) and len(plain) <= _LIST_CHARACTERS:
        return Text(plain)
    return Text("1 entry" if len(values) == 1 else f"{len(values)} entries")


def _entry(values: Mapping[str, Any]) -> str:
    """Return what an entry says in one line: its name, then names and values; empty if all that it has lies deeper."""
    said = []
    for place, (name, value) in enumerate(values.items()):
        if isinstance(value, str) and place == 0:
            said.append(value)
        elif isinstance(value, bool):
            said.append(f"{name} {'yes' if value else 'no'}")
        elif isinstance(value, (int, float)):
            said.append(f"{name} {formatting.number(value)}")
        elif isinstance(value, str) and value:
            said.append(f"{name} {value}")
    return " · ".join(said)


def _line(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _LINE_CHARACTERS else f"{text[:_LINE_CHARACTERS]}…"
