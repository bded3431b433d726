"""`tunefleet graph`: the dependency graph of a workflow, and which results go where.

An edge runs in the lane of its upstream, from which all dependents branch off, or in the lane of its task, which all
upstreams join. The side with more edges gets the lane, so that fan-in and fan-out stay narrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, out, print_json, say, status_text
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import Set, connect, parse_sets
from tunefleet.client.submission import override, read_document
from tunefleet.spec import TaskNode, Workflow, format_memory, parse_memory, parse_workflow
from tunefleet.spec.documents.dependencies import layers
from tunefleet.spec.expressions.references import References, references_of

_MARK, _CONDITIONAL = "●", "◇"
_SHOWN = 8
_TURNS = {
    # up, down, left, right → the character
    (False, False, True, True): "─",
    (True, True, False, False): "│",
    (True, True, False, True): "├",
    (True, True, True, False): "┤",
    (True, True, True, True): "┼",
    (True, False, False, True): "╰",
    (True, False, True, False): "╯",
    (True, False, True, True): "┴",
    (False, True, False, True): "╭",
    (False, True, True, False): "╮",
    (False, True, True, True): "┬",
}


@examples("tunefleet graph pipeline.yaml", "tunefleet graph wf-3f", "tunefleet graph pipeline.yaml --json")
def graph(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A workflow file, or the id of a workflow.")],
    *,
    sets: Set = None,
    as_json: Json = False,
) -> None:
    """Draw the dependency graph of a workflow.

    ● marks a task and ◇ a conditional task; lines lead from each task to its dependents. The results that a task
    uses are listed below it. A workflow on the server is shown with the status of each task; a file needs no
    server.
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
    rows = draw_lanes({task.name: task.depends_on for task in tasks}, marks)
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


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the drawing."""

    lines: str
    name: str | None
    below: str


@dataclass(slots=True)
class _Lane:
    kind: Literal["from", "to"]
    name: str
    left: set[str] = field(default_factory=set)


def draw_lanes(waits: Mapping[str, Sequence[str]], marks: Mapping[str, str] | None = None) -> list[Row]:
    """Draw tasks.

    Args:
        waits: Task → the tasks it depends on, without cycles; unknown names are ignored.
        marks: Task → its character; default `●`.
    """
    above = {name: [each for each in dict.fromkeys(ups) if each in waits] for name, ups in waits.items()}
    below: dict[str, list[str]] = {name: [] for name in above}
    for task, ups in above.items():
        for name in ups:
            below[name].append(task)
    drawing = _Drawing(above, below)
    for name in _order(above, below):
        drawing.place(name, (marks or {}).get(name, "●"))
    return drawing.rows


def _order(above: Mapping[str, list[str]], below: Mapping[str, list[str]]) -> list[str]:
    """Order topologically, each task right after its last dependency where possible."""
    missing = {name: len(ups) for name, ups in above.items()}
    # A stack, so reversed: depth first, in the order of definition.
    ready = [name for name in reversed(list(above)) if not above[name]]
    order = []
    while ready:
        name = ready.pop()
        order.append(name)
        for task in reversed(below[name]):
            missing[task] -= 1
            if missing[task] == 0:
                ready.append(task)
    return order


class _Drawing:
    def __init__(self, above: Mapping[str, list[str]], below: Mapping[str, list[str]]) -> None:
        self.rows: list[Row] = []
        self._above, self._below = above, below
        self._lanes: list[_Lane | None] = []
        # The column of the last row's mark.
        self._column = -1

    def place(self, name: str, mark: str) -> None:
        """Draw one task, and the lanes that start or join below it."""
        before = list(self._lanes)
        inward = [at for at, lane in enumerate(before) if lane is not None and self._leads_to(lane, name)]
        for at in inward:
            self._arrive(at, name)
        freed = [at for at in inward if self._lanes[at] is None]
        column = min(freed) if freed else self._free(min(inward) if inward else 0)
        # Two marks right below each other would not look connected: a row of lanes goes between them.
        if column in freed and column == self._column:
            self.rows.append(Row(_passing(before), None, _passing(before)))
        self._column = column
        cells = self._cells(before, self._lanes, {*inward, column})
        cells[column] = mark
        outward = self._depart(name, column)
        below = _passing(self._lanes, column, outward)
        self.rows.append(Row(self._text(cells, {*inward, column}), name, below))
        if outward:
            now = list(self._lanes)
            was: list[_Lane | None] = [lane if at not in outward.new else None for at, lane in enumerate(now)]
            was[column] = was[column] or _Lane("from", name)
            ends = {*outward.columns, column}
            self._column = -1
            self.rows.append(Row(self._text(self._cells(was, now, ends), ends), None, _passing(self._lanes)))
        # Free columns on the right would only widen the drawing.
        while self._lanes and self._lanes[-1] is None:
            self._lanes.pop()

    def _leads_to(self, lane: _Lane, name: str) -> bool:
        return lane.name == name if lane.kind == "to" else name in lane.left

    def _arrive(self, at: int, name: str) -> None:
        lane = self._lanes[at]
        if lane is not None:
            lane.left.discard(name)
            if lane.kind == "to" or not lane.left:
                self._lanes[at] = None

    def _free(self, start: int) -> int:
        """Return the first free column from `start` on."""
        for at in range(start, len(self._lanes)):
            if self._lanes[at] is None:
                return at
        self._lanes.append(None)
        return max(start, len(self._lanes) - 1)

    def _joins(self, name: str, task: str) -> bool:
        """Whether the edge runs in the lane of the dependent task."""
        return 1 < len(self._above[task]) >= len(self._below[name])

    def _depart(self, name: str, column: int) -> _Outward:
        """Open the lanes of a task's dependents; returns the columns to draw lines to."""
        # These share the lane of the task; the others get or join a lane of their own.
        own = {task for task in self._below[name] if not self._joins(name, task)}
        if own:
            self._lanes[column] = _Lane("from", name, own)
        outward = _Outward()
        for task in (each for each in self._below[name] if each not in own):
            at = next(
                (at for at, lane in enumerate(self._lanes) if lane and lane.kind == "to" and lane.name == task), -1
            )
            if at < 0:
                at = column if self._lanes[column] is None else self._free(column + 1)
                self._lanes[at] = _Lane("to", task)
                outward.new.add(at)
            if at != column:
                outward.columns.add(at)
        return outward

    def _cells(self, was: Sequence[_Lane | None], now: Sequence[_Lane | None], ends: set[int]) -> list[str]:
        """Return the character of each column of a row whose line runs through all `ends`."""
        width = max(len(was), len(now), max(ends) + 1)
        first, last = min(ends), max(ends)
        cells = []
        for at in range(width):
            up = at < len(was) and was[at] is not None
            down = at < len(now) and now[at] is not None
            if at in ends:
                cells.append(_TURNS.get((up, down, first < at, at < last), " "))
            elif up or down:
                cells.append("│")
            else:
                cells.append("─" if first < at < last else " ")
        return cells

    @staticmethod
    def _text(cells: Sequence[str], ends: set[int]) -> str:
        first, last = min(ends), max(ends)
        return "".join(cell + ("─" if first <= at < last else " ") for at, cell in enumerate(cells)).rstrip()


def _passing(lanes: Sequence[_Lane | None], column: int | None = None, outward: _Outward | None = None) -> str:
    """Return the lanes that continue downwards; with `outward`, as they are above its row."""
    later = outward.new - {column} if outward else set()
    own = column if outward else None
    cells = ("│" if at == own or (lane is not None and at not in later) else " " for at, lane in enumerate(lanes))
    return " ".join(cells).rstrip()


@dataclass(slots=True)
class _Outward:
    """Columns that a task's line runs to; in those of `new` the lane begins."""

    columns: set[int] = field(default_factory=set)
    new: set[int] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.columns)
