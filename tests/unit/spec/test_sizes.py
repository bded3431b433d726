"""Documents that would be large, or costly to read: refused with a place and a way out before they cost anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import yaml

from tunefleet.errors import Fault, SpecError
from tunefleet.spec import parse_workflow, value_preview
from tunefleet.spec.documents import dependencies, fault_messages, nodes
from tunefleet.spec.documents.dependencies import Edge
from tunefleet.spec.documents.stages import MAX_TASKS, Draft
from tunefleet.spec.expressions import placeholders, result_keys
from tunefleet.spec.expressions.placeholders import MAX_PLACEHOLDER, Stray, pieces
from tunefleet.spec.expressions.size_limits import MAX_MERGED_CHARACTERS, MAX_MERGED_VALUES, MAX_PLACEHOLDERS
from tunefleet.spec.text import MAX_VALUES, Source
from tunefleet.spec.value_preview import MAX_FAULTS, More

HEAD = "apiVersion: tunefleet/v1\nspec:\n  taskType: echo\n"


class Calls:
    """Stands for a function and counts its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> None:
        self._real = getattr(place, name)
        self.count = 0
        monkeypatch.setattr(place, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return self._real(*args, **kwargs)


def graph(lines: Iterable[str], shared: str = "data: {items: [a]}") -> str:
    listed = "".join(f"      - {{{line}}}\n" for line in lines)
    return f"{HEAD}  {shared}\n  graph:\n    nodes:\n{listed}"


def faults(text: str) -> list[Fault]:
    with pytest.raises(SpecError) as caught:
        parse_workflow(text)
    return list(caught.value.faults)


@pytest.mark.parametrize(
    ("items", "tasks", "shown", "limit"),
    [
        (["x"] * 2_000, 130, "130 tasks × 2,005 shared values", f"{MAX_MERGED_VALUES:,} values"),
        (["x" * 400_000], 90, "90 tasks × 400,", f"{MAX_MERGED_CHARACTERS:,} characters"),
    ],
    ids=["values", "characters"],
)
def test_what_all_share_is_refused_before_each_task_has_it(
    monkeypatch: pytest.MonkeyPatch, items: list[str], tasks: int, shown: str, limit: str
) -> None:
    read = Calls(monkeypatch, nodes, "read_spec")
    found = faults(graph((f"name: n{n}" for n in range(tasks)), f"data: {{type: list, items: [{', '.join(items)}]}}"))
    assert [(fault.path, fault.line, fault.column) for fault in found] == [("spec.data", 4, 3)]
    assert shown in found[0].message
    assert limit in found[0].message
    assert "in several workflows" in str(found[0].hint)
    assert read.count == 0


def test_much_that_all_share_is_allowed() -> None:
    text = graph((f"name: n{n}" for n in range(50)), f"data: {{items: [{', '.join(['x'] * 2_000)}]}}")
    assert len(parse_workflow(text).tasks) == 50


def test_what_a_task_replaces_does_not_count() -> None:
    own = "spec: {data: {items: [y]}}"
    text = graph((f"name: n{n}, {own}" for n in range(300)), f"data: {{items: [{', '.join(['x'] * 2_000)}]}}")
    assert len(parse_workflow(text).tasks) == 300


def test_a_document_has_a_number_of_tasks() -> None:
    (fault,) = faults(graph(f"name: n{n}" for n in range(MAX_TASKS + 1)))
    assert (fault.path, fault.line, fault.hint) == ("spec.graph.nodes", 7, "submit them in several workflows")
    assert fault.message == "has 5,001 entries; a workflow has at most 5,000 tasks"


def test_a_short_text_with_many_values_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    compose = Calls(monkeypatch, yaml, "compose")
    (fault,) = faults(f"a: [{'x,' * 2 * MAX_VALUES}]")
    assert "has too many values" in fault.message
    assert "are allowed; move data to a separate file, or submit several workflows" in str(fault.hint)
    assert compose.count == 0


def test_references_that_all_share_are_counted_for_each_task() -> None:
    much = "${a.result.x} " * 1_000
    listed = ["name: a, spec: {data: {items: [x]}}", *(f"name: n{n}" for n in range(MAX_PLACEHOLDERS // 1_000 + 1))]
    (fault,) = faults(graph(listed, f"data: {{items: ['{much}']}}"))
    assert (fault.path, fault.line) == ("spec.data.items.0", 4)
    assert "more than 50,000 placeholders" in fault.message


@pytest.mark.parametrize("text", ["${a.b}", " ${a.b} ${", "${a.b}x"], ids=str)
def test_no_more_placeholders_are_read_than_are_allowed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    read = Calls(monkeypatch, placeholders, "_meaning")
    (fault,) = faults(f"{HEAD}  data: {{items: ['{text * 3 * MAX_PLACEHOLDERS}']}}\n")
    assert "more than 50,000 placeholders" in fault.message
    assert read.count <= MAX_PLACEHOLDERS + 10


def test_of_many_references_to_one_value_it_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Calls(monkeypatch, result_keys, "fault_of")
    for key in ("items", "none"):
        text = " ".join(["${a.result." + key + "}"] * 1_000)
        document = graph(["name: a", f"name: b, spec: {{data: {{items: ['{text}']}}}}"])
        if key == "items":
            parse_workflow(document)
        else:
            assert len(faults(document)) == MAX_FAULTS
    assert told.count == 2


def test_no_more_faults_than_anybody_reads_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    read, guess = Calls(monkeypatch, nodes, "read_spec"), Calls(monkeypatch, dependencies, "nearest")
    keys = Calls(monkeypatch, fault_messages, "nearest")
    fault_messages._nearest_key.cache_clear()
    found = faults(graph(f"name: n{n}, dependsOn: [z{n}], spec: {{datta: 1, dta: 2}}" for n in range(3_000)))
    assert len(found) == MAX_FAULTS + 1
    assert [fault.line for fault in found] == sorted(fault.line for fault in found)
    assert isinstance(found[-1], More)
    assert found[-1].message == "and there may be more: the rest was not checked"
    assert found[-1].line > 6
    assert read.count == 100, "each task has two"
    assert guess.count == 0, "there are too many names"
    assert keys.count == 2, "each misspelling is looked up once"


def test_names_are_guessed_for_the_first_of_many_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    guess = Calls(monkeypatch, dependencies, "nearest")
    found = faults(graph(f"name: first{n}, dependsOn: [frist{n}]" for n in range(100)))
    assert len(found) == 100
    assert str(found[0].hint).startswith("did you mean first")
    assert str(found[-1].hint).startswith("available: first0, first1, ")
    assert guess.count == 20
    assert value_preview.nearest("a" * 65, ["a" * 65]) is None


def test_a_fault_that_all_share_is_not_looked_for_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Calls(monkeypatch, nodes, "read_spec")
    found = faults(graph((f"name: n{n}" for n in range(3_000)), "datta: 1"))
    assert [(fault.path, fault.message) for fault in found[:-1]] == [("spec.datta", "is not a known key")]
    assert isinstance(found[-1], More)
    assert read.count <= 1_000


def test_faults_of_the_text_itself_are_not_told_without_end() -> None:
    found = faults("".join(f"{n}: x\n" for n in range(3_000)))
    assert len(found) == MAX_FAULTS + 1
    assert isinstance(found[-1], More)


def test_a_long_placeholder_is_refused_and_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    class Names(tuple[str, ...]):
        def __contains__(self, name: object) -> bool:
            nonlocal asked
            asked += 1
            return super().__contains__(name)

    text = f"${{a{'[0]' * 100_000}}}"
    (piece,) = pieces(text, Names(("a",)))
    assert isinstance(piece, Stray)
    assert asked == 0
    (fault,) = faults(graph(["name: a", f"name: b, spec: {{data: {{items: ['{text}']}}}}"]))
    assert "has 300,001 characters; a reference has at most 1,000" in fault.message
    assert len(str(fault)) < 400
    longest = f"${{a.echo.{'k' * (MAX_PLACEHOLDER - 7)}}}"
    assert len(parse_workflow(graph(["name: a", f"name: b, spec: {{data: {{items: ['{longest}']}}}}"])).tasks) == 2


def test_a_task_that_waits_for_many_is_put_together_in_one_pass() -> None:
    compared = 0

    class Name(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    source = Source({"spec": {"taskType": "echo"}})
    names = dict.fromkeys(f"n{n}" for n in range(1_000))
    waits = [Edge("last", Name(f"n{n}"), "dependsOn", (), source, "") for n in range(1_000)]
    made = nodes._node(Draft("last", source, ()), None, None, names, waits)
    assert len(made.depends_on) == 1_000
    assert compared < 10_000


def test_of_many_circles_the_first_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    walks = Calls(monkeypatch, dependencies, "_without_ends")

    def pairs() -> Iterator[str]:
        for n in range(300):
            yield f"name: a{n}, dependsOn: [b{n}]"
            yield f"name: b{n}, dependsOn: [a{n}]"

    found = faults(graph(pairs()))
    assert len(found) == 21
    assert walks.count <= 21
    assert found[0].hint == "remove one of these dependencies"
    assert isinstance(found[-1], More)


def test_a_long_circle_is_cut() -> None:
    (fault,) = faults(graph(f"name: n{n}, dependsOn: [n{(n + 1) % 400}]" for n in range(400)))
    assert "… (400 tasks) → n" in fault.message
    assert len(fault.message) < 200
