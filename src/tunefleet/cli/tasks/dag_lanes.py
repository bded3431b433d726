"""Layout of a task graph as text: one row per task, dependencies above it. Pure; knows names only.

An edge runs in the lane of its upstream, from which all dependents branch off, or in the lane of its task, which all
upstreams join. The side with more edges gets the lane, so that fan-in and fan-out stay narrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

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


def draw(waits: Mapping[str, Sequence[str]], marks: Mapping[str, str] | None = None) -> list[Row]:
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
