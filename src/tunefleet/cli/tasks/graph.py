"""`tunefleet graph`: the dependency graph of a workflow, and which results go where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, out, print_json, say, status_text
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import Set, connect, parse_sets
from tunefleet.cli.tasks.dag_lanes import Row, draw
from tunefleet.client.submission import override, read_document
from tunefleet.spec import TaskNode, Workflow, format_memory, parse_memory, parse_workflow
from tunefleet.spec.documents.cycle_check import layers
from tunefleet.spec.expressions.references import References, references_of

_MARK, _CONDITIONAL = "●", "◇"
_SHOWN = 8


@examples("tunefleet graph pipeline.yaml", "tunefleet graph wf-3f", "tunefleet graph pipeline.yaml --json")
def graph(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A workflow file, or the id of a workflow.")],
    *,
    sets: Set = None,
    as_json: Json = False,
) -> None:
    """Draw the dependency graph of a workflow.

    ● is a task and ◇ one with a condition; lines lead from a task to its dependents. The results that a task uses are
    listed below it. A file needs no server; for a workflow on the server the statuses are shown, too.
    """
    workflow, statuses = _workflow(file, sets)
    references = {task.name: references_of(task.raw, [each.name for each in workflow.tasks]) for task in workflow.tasks}
    steps = _steps(workflow.tasks)
    if as_json:
        print_json({"name": workflow.name, "tasks": [_plain(t, steps, references, statuses) for t in workflow.tasks]})
        return
    count = formatting.plural(len(workflow.tasks), "task")
    say(Text.assemble((workflow.name, "head"), f": {count}, {formatting.plural(max(steps.values()), 'step')}"))
    say()
    for line in _drawn(workflow.tasks, references, statuses):
        say(line)


def _workflow(file: str, sets: list[str] | None) -> tuple[Workflow, dict[str, str]]:
    """Read a workflow file, or fetch a workflow with the statuses of its tasks."""
    # A local file wins: its name may look like an id.
    if file.startswith("wf-") and not Path(file).exists():
        with connect() as client:
            found = client.workflows.get(file)
        return parse_workflow(found.document, filename=found.id), {
            task.original_name or task.name: task.status for task in found.tasks
        }
    text, _ = read_document(Path(file))
    return override(text, parse_sets(sets), filename=file)[1], {}


def _steps(tasks: Sequence[TaskNode]) -> dict[str, int]:
    """Return the earliest step of each task, counted from 1."""
    found = layers({task.name: task.depends_on for task in tasks})
    return {name: at for at, names in enumerate(found, start=1) for name in names}


def _plain(
    task: TaskNode, steps: Mapping[str, int], references: Mapping[str, References], statuses: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "name": task.name,
        "kind": task.kind,
        "step": steps[task.name],
        "status": statuses.get(task.name),
        "depends_on": task.depends_on,
        "external": task.external,
        "condition": task.condition.model_dump(mode="json", exclude_none=True) if task.condition else None,
        "references": [{"at": at, "names": each.node, "text": each.text} for at, each in references[task.name]],
        "resources": task.raw.get("resources"),
    }


def _drawn(
    tasks: Sequence[TaskNode], references: Mapping[str, References], statuses: Mapping[str, str]
) -> Iterator[Text]:
    marks = {task.name: _CONDITIONAL if task.condition else _MARK for task in tasks}
    rows = draw({task.name: task.depends_on for task in tasks}, marks)
    by_name = {task.name: task for task in tasks}
    gutter = max(len(row.lines) for row in rows) + 2
    name_width = max(len(task.name) for task in tasks) + 2
    has_notes = False
    for row in rows:
        task = by_name.get(row.name or "")
        if task is None:
            # The notes of the task above already show the lanes that continue.
            if not (has_notes and row.lines == row.below):
                yield Text(row.lines, style="dim")
            continue
        yield _line(row, task, statuses.get(task.name), gutter, name_width)
        notes = list(_notes(task, references[task.name]))
        has_notes = bool(notes)
        for note in notes:
            yield _fitting(Text.assemble((row.below.ljust(gutter), "dim"), note))


def _line(row: Row, task: TaskNode, status: str | None, gutter: int, name_width: int) -> Text:
    line = Text.assemble((row.lines.ljust(gutter), "dim"), (task.name.ljust(name_width), "head"), (task.kind, "busy"))
    if status is not None:
        line.append("  ").append_text(status_text(status))
    needs = _needs(task.raw)
    return _fitting(line.append(f"  {needs}" if needs else ""))


def _fitting(line: Text) -> Text:
    """Truncate a line to the terminal: a wrapped line would break the drawing."""
    if out().is_terminal:
        line.truncate(out().width, overflow="ellipsis")
    return line


def _notes(task: TaskNode, references: References) -> Iterator[Text]:
    named = (*task.depends_on, *task.external)
    if len(task.depends_on) > 1 or task.external:
        more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
        yield Text(f"after {', '.join(named[:_SHOWN])}{more}", style="dim")
    if task.condition is not None:
        wanted = task.condition
        yield Text(f"if {wanted.node}.{wanted.field} is {wanted.equals!r}", style="warn")
    for at, reference in references:
        yield Text.assemble((f"{at} ← ", "dim"), reference.text)


def _needs(raw: Mapping[str, Any]) -> str:
    """Return the hardware requirements of a task that are written without references."""
    hardware = _mapping(_mapping(raw.get("resources")).get("hardware"))
    gpu = _mapping(hardware.get("gpu"))
    kind = gpu.get("type", "any")
    parts = [
        f"{gpu.get('count', 1)} GPU{'' if gpu.get('count', 1) == 1 else 's'}" if gpu else "",
        str(kind) if gpu and kind != "any" else "",
        f"of {_amount(gpu['memory'])}" if gpu.get("memory") else "",
        f"{hardware['cpu']} cores" if hardware.get("cpu") else "",
        f"{_amount(hardware['memory'])} memory" if hardware.get("memory") else "",
    ]
    return " ".join(parts[:3]).strip() + "".join(f", {part}" for part in parts[3:] if part).removeprefix(
        "" if gpu else ", "
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _amount(value: Any) -> str:
    try:
        return str(format_memory(parse_memory(value)))
    except ValueError:  # a reference, not a size
        return str(value)
