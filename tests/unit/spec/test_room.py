"""Results and templates that would make a spec large: refused with the reference and a way out before it is built."""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.errors import ReferenceFault, SpecError
from tunefleet.spec import ConditionSpec, fill_secrets, parse_workflow, resolve, unmet
from tunefleet.spec.expressions import lookup as lookup_module
from tunefleet.spec.expressions.placeholders import MAX_PLACEHOLDER, Reference
from tunefleet.spec.expressions.size_limits import MAX_RESOLVED_CHARACTERS, MAX_RESOLVED_LEVELS, MAX_RESOLVED_VALUES

LONG = "x" * 1_000_000
FITS = MAX_RESOLVED_CHARACTERS // len(LONG)
DIGITS = "9" * 5_000


def envelopes(**result: Any) -> dict[str, dict[str, Any]]:
    return {"a": {"task_id": "task-1", "result": result}}


def items(*entries: Any) -> dict[str, Any]:
    return {"data": {"type": "list", "items": list(entries)}}


@pytest.mark.parametrize(
    "entry",
    ["${a.result.long}", "so: ${a.result.long}", {"node": "a", "path": "long"}, {"node": "a", "path": "longs"}],
    ids=["alone", "inside", "entry", "list"],
)
def test_a_long_result_is_named_as_often_as_there_is_room(entry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known = envelopes(long=LONG, longs=[LONG])
    found = resolve(items(*[entry] * FITS), known)["data"]["items"]
    assert len(found) == FITS
    assert all(text.endswith(LONG) for text in found)
    looked = 0
    real = lookup_module.look_up

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal looked
        looked += 1
        return real(*args, **kwargs)

    monkeypatch.setattr("tunefleet.spec.expressions.references.look_up", counted)
    with pytest.raises(ReferenceFault) as caught:
        resolve(items(*[entry] * 300), known)
    assert looked == FITS + 1, "nothing is looked at once there is no room"
    assert caught.value.message.startswith(f"spec.data.items.{FITS}: ")
    assert "a.result.long" in caught.value.message or "a.long" in caught.value.message
    assert f"{MAX_RESOLVED_CHARACTERS:,} characters" in caught.value.message
    assert caught.value.hint is not None
    assert (
        "Refer to a part of the result, such as one field, or split the work into several tasks; pass"
        in caught.value.hint
    )


def test_many_values_and_lists_that_are_only_looked_through_count() -> None:
    rows = [{"output": n} for n in range(MAX_RESOLVED_VALUES // 10)]
    with pytest.raises(ReferenceFault, match=f"{MAX_RESOLVED_VALUES:,} values"):
        resolve({"x": ["${a.rows}"] * 8}, envelopes(rows=rows))
    assert resolve({"x": ["${a.rows.output.7}"] * 5}, envelopes(rows=rows))["x"] == [7] * 5
    with pytest.raises(ReferenceFault, match=r"x\.9: "):
        resolve({"x": ["${a.rows.output.7}"] * 10}, envelopes(rows=rows))


def test_json_in_a_text_counts_as_it_is_written() -> None:
    known = envelopes(bells=["\a" * 1_000_000])
    with pytest.raises(ReferenceFault, match=r"x\.2: "):
        resolve({"x": ["now ${a.bells}"] * 3}, known)


def template(content: str, *columns: Any) -> dict[str, Any]:
    named = {"name": "format", "columns": list(columns), "options": {"format": {"messages": [{"content": content}]}}}
    return {"data": {"type": "graph_template", "template": named}}


def test_prompts_of_a_template_are_counted_before_they_are_made() -> None:
    rows = {"label": "row", "data": {"items": ["r"] * 300}}
    long = {"label": "long", "node": "a", "path": "long", "default": "none"}
    with pytest.raises(ReferenceFault, match=r"spec\.data\.template: .*characters"):
        resolve(template("{row} {long}", rows, long), envelopes(long=LONG))
    lists = {**long, "path": "longs"}
    with pytest.raises(ReferenceFault, match=r"a\.longs is too large"):
        resolve(template("{long}", lists), envelopes(longs=[LONG] * (FITS + 1)))


def test_a_template_without_references_is_refused_in_the_document() -> None:
    text = (
        "apiVersion: tunefleet/v1\nspec:\n  taskType: echo\n  data:\n    type: graph_template\n    template:\n"
        "      name: format\n      options: {format: {messages: [{content: '{row} {long}'}]}}\n      columns:\n"
        f"      - {{label: row, data: {{items: [{', '.join(['r'] * 400)}]}}}}\n"
        f"      - {{label: long, data: {{items: [{LONG[:100_000]}]}}}}\n"
    )
    with pytest.raises(SpecError) as caught:
        parse_workflow(text)
    (fault,) = caught.value.faults
    assert (fault.path, fault.line) == ("spec.data.template", 7)
    assert "32,000,000 characters" in fault.message


@pytest.mark.parametrize("field", ["condition", "items", "column"])
def test_a_path_has_a_length(field: str) -> None:
    path = f"items[{DIGITS[:2_000]}]"
    second = {
        "condition": f"condition: {{node: a, field: '{path}', equals: 1}}, data: {{items: [x]}}",
        "items": f"data: {{items: [{{node: a, path: '{path}'}}]}}",
        "column": "data: {type: graph_template, template: {name: t, text: x, columns: "
        f"[{{node: a, path: '{path}'}}]}}}}",
    }[field]
    text = (
        "apiVersion: tunefleet/v1\nspec:\n  taskType: echo\n  stages:\n  - {name: a, spec: {data: {items: [a]}}}\n"
        f"  - {{name: b, spec: {{{second}}}}}\n"
    )
    with pytest.raises(SpecError) as caught:
        parse_workflow(text)
    fault = caught.value.faults[0]
    assert fault.line == 6
    assert "is not a path" in fault.message
    assert f"it has {len(path):,} characters; a path has at most {MAX_PLACEHOLDER:,}" in str(fault.hint)


@pytest.mark.parametrize("part", [DIGITS, "0" * 5_000 + "7", "2"])
def test_an_index_of_any_number_of_digits_is_only_beyond_the_end(part: str) -> None:
    reference = Reference("a", ("result", "items", part), "a.items")
    with pytest.raises(ReferenceFault, match="has 2 entries, counted from 0"):
        lookup_module.look_up(reference, envelopes(items=["x", "y"]))


def test_a_leading_zero_changes_no_index() -> None:
    assert resolve({"x": "${a.items[01]}${a.items[0]}"}, envelopes(items=["x", "y"])) == {"x": "yx"}
    condition = ConditionSpec(node="a", field="items.001", equals="y")
    assert unmet(condition, envelopes(items=["x", "y"])["a"]) is None


def test_no_key_of_a_result_lets_it_name_a_secret() -> None:
    resolved = resolve({"env": "${a.env}"}, envelopes(env={"code": "${secret:TOKEN}"}))
    assert fill_secrets(resolved, {"TOKEN": "sesame"}.get) == {"env": {"code": "${secret:TOKEN}"}}


@pytest.mark.parametrize(("levels", "fits"), [(MAX_RESOLVED_LEVELS, True), (MAX_RESOLVED_LEVELS + 1, False)])
def test_what_is_nested_so_deeply_that_no_worker_reads_it_is_refused(levels: int, fits: bool) -> None:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value]
    if fits:
        assert resolve({"x": "${a.value}"}, envelopes(value=value)) == {"x": value}
    else:
        with pytest.raises(ReferenceFault, match=r"a\.value\} is nested more than 100 levels deep"):
            resolve({"x": "${a.value}"}, envelopes(value=value))
