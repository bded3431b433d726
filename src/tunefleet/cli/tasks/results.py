"""A task's result as rows of names and values; model outputs are shown as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import facts
from tunefleet.schemas.api import TaskDetail

Row = tuple[str, RenderableType | None]

_ROWS: Final = 24
_LINES: Final = 8
_LINE_CHARACTERS: Final = 160
_LIST_CHARACTERS: Final = 80
# Redundant on the screen: a result implies `ok`, and the task and its shards are listed above it.
_SHOWN_ELSEWHERE: Final = frozenset({"ok", "task_id", "shards"})
# For maintainers; `--all` shows them.
_INTERNAL: Final = frozenset({"fingerprint", "evaluations", "versions", "model_name", "output_dir", "timings"})


def executor_result(task: TaskDetail) -> dict[str, Any]:
    """Return the executor's result without the server's envelope; empty without a result."""
    envelope = task.result or {}
    inner = envelope.get("result")
    return inner if isinstance(inner, dict) else envelope


def rows(task: TaskDetail, *, whole: bool = False) -> list[Row]:
    """Return the readable part of a task's result; `--json` has all of it.

    Args:
        whole: Whether to include paths, digests, versions and everything beyond the first rows.
    """
    # An echo task returns its own spec.
    hidden = _SHOWN_ELSEWHERE | ({"echo", "count"} if task.kind == "echo" else set())
    if not whole:
        hidden |= _INTERNAL
    found = _flat({name: value for name, value in executor_result(task).items() if name not in hidden})
    more = 0 if whole else len(found) - _ROWS
    return found if more <= 0 else [*found[:_ROWS], ("…", Text(f"and {more} more (--all shows them)"))]


def answers(task: TaskDetail) -> list[RenderableType]:
    """Return the answers of a model to eval prompts, before and after its training."""
    held_out = executor_result(task).get("held_out")
    listed = held_out.get("answers") if isinstance(held_out, dict) else None
    found: list[RenderableType] = []
    for each in listed or ():
        named = [(name, _line(value)) for name, value in each.items() if value is not None]
        found += [Text(), Text("Answer", style="head"), facts(named)]
    return found


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
    """Return a metric of an evaluation with its confidence interval."""
    found = formatting.number(values["value"]) if values["value"] is not None else "unknown"
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
    """Return an entry as one line: its name, then names and values; empty if all its values are nested."""
    parts = []
    for position, (name, value) in enumerate(values.items()):
        if isinstance(value, str) and position == 0:
            parts.append(value)
        elif isinstance(value, bool):
            parts.append(f"{name} {'yes' if value else 'no'}")
        elif isinstance(value, (int, float)):
            parts.append(f"{name} {formatting.number(value)}")
        elif isinstance(value, str) and value:
            parts.append(f"{name} {value}")
    return " · ".join(parts)


def _line(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _LINE_CHARACTERS else f"{text[:_LINE_CHARACTERS]}…"
