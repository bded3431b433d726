"""The drawing of what waits for what: every edge can be followed along its lines, and no line leads elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tunefleet.cli.tasks.graph import Row, draw_lanes

# The sides that a character has lines to: up, down, left, right.
SIDES = {
    "│": "ud", "─": "lr", "├": "udr", "┤": "udl", "┼": "udlr", "╰": "ur", "╯": "ul", "┴": "ulr", "╭": "dr",
    "╮": "dl", "┬": "dlr", "●": "udlr", " ": "",
}  # fmt: skip


def lines(waits: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{row.lines:8}{row.name or ''}".rstrip() for row in draw_lanes(waits)]


def test_a_diamond() -> None:
    waits = {"join": ["left", "right"], "a": [], "left": ["a"], "right": ["a"]}
    assert lines(waits) == [
        "●       a",
        "├─●     left",
        "● │     right",
        "╰─┤",
        "  ●     join",
    ]


def test_a_chain_is_joined_and_strangers_are_not() -> None:
    assert lines({"a": [], "b": ["a"], "c": [], "d": []}) == ["●       a", "│", "●       b", "●       c", "●       d"]


def test_a_fan_stays_narrow() -> None:
    parts = [f"p{number}" for number in range(40)]
    waits: dict[str, list[str]] = {"a": [], **{part: ["a"] for part in parts}, "z": parts}
    assert max(len(row.lines) for row in draw_lanes(waits)) <= 5


@st.composite
def graphs(made: st.DrawFn) -> dict[str, list[str]]:
    count = made(st.integers(1, 9))
    names = [f"t{number}" for number in range(count)]
    ups = {name: made(st.lists(st.sampled_from(names[:at]), max_size=3)) if at else [] for at, name in enumerate(names)}
    return dict(made(st.permutations(list(ups.items()))))


@settings(max_examples=60)
@given(graphs())
def test_lines_lead_from_each_task_to_all_that_wait_for_it(waits: dict[str, list[str]]) -> None:
    rows = draw_lanes(waits)
    assert sorted(row.name for row in rows if row.name) == sorted(waits)
    place = {row.name: at for at, row in enumerate(rows)}
    for name, ups in waits.items():
        for up in ups:
            assert place[up] < place[name], "upstreams stand above"
            assert name in reached(rows, up), "\n".join(row.lines for row in rows)
    for row in rows:
        marks = row.lines.count("●")
        assert marks == (1 if row.name else 0)
    for at, row in enumerate(rows[1:], start=1):
        for column, character in enumerate(row.lines):
            if "u" in SIDES[character] and character not in "●":
                above = rows[at - 1].lines[column : column + 1] or " "
                assert "d" in SIDES[above], "a line comes from somewhere"


def reached(rows: Sequence[Row], start: str) -> set[str]:
    """Follow the lines downward from a task, over crossings straight on; return the tasks that they lead to."""
    first = next(at for at, row in enumerate(rows) if row.name == start)
    column = rows[first].lines.index("●")
    todo = [(first + 1, column, "d"), *((first, column + step, side) for step, side in ((1, "r"), (-1, "l")))]
    seen: set[tuple[int, int, str]] = set()
    found: set[str] = set()
    while todo:
        at, x, heading = todo.pop()
        if (at, x, heading) in seen or at >= len(rows) or not 0 <= x < len(rows[at].lines):
            continue
        seen.add((at, x, heading))
        character = rows[at].lines[x]
        sides = SIDES[character]
        if {"d": "u", "r": "l", "l": "r"}[heading] not in sides:
            if character == "│" and heading in "rl":  # another lane is crossed
                todo.append((at, x + (1 if heading == "r" else -1), heading))
            continue
        if character == "●":
            found.add(str(rows[at].name))
            continue
        todo += [(at + 1, x, "d")] if "d" in sides else []
        todo += [(at, x + 1, "r")] if "r" in sides and heading != "l" else []
        todo += [(at, x - 1, "l")] if "l" in sides and heading != "r" else []
    return found


class Name(str):
    """A name that counts with how many others it is compared."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


def test_a_chain_of_twice_as_many_tasks_is_twice_the_work() -> None:
    counts = []
    for length in (100, 200):
        names = [Name(f"t{at}") for at in range(length)]
        Name.compared = 0
        rows = draw_lanes({name: names[at - 1 : at] for at, name in enumerate(names)})
        assert sum(row.name is not None for row in rows) == length
        counts.append(Name.compared)
    assert counts[1] <= 2.2 * counts[0]
