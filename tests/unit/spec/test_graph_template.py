"""Prompts that are put together from the results of other tasks."""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.errors import ReferenceFault, SpecError
from tunefleet.spec import load_task_spec, parse_workflow, resolve


def envelope(**result: Any) -> dict[str, Any]:
    return {"task_id": "task-1", "worker_id": "w", "metadata": {}, "received_at": "now", "result": result}


RESULTS = {
    "a": envelope(items=[{"output": "Cheap.\nAnd safe."}, {"output": "Slow."}], n=3, none=None),
    "b": envelope(items=[{"output": "Dear {col0_value}."}, {"output": "Fast."}]),
}
A, B = ({"node": name, "path": "result.items[0].output"} for name in "ab")


def items(template: dict[str, Any], **spec: Any) -> list[str]:
    found = resolve({"data": {"type": "graph_template", "template": template}, **spec}, RESULTS)
    assert found["data"].keys() == {"type", "items"}
    assert found["data"]["type"] == "list"
    made: list[str] = found["data"]["items"]
    return made


def test_two_columns() -> None:
    (prompt,) = items({"columns": [{"label": "Coal", **A}, {"label": "Wind", **B}], "options": {"role": "banker"}})
    assert prompt.startswith("You are a banker.")
    assert "\n- Coal: Cheap.\n  And safe.\n- Wind: Dear {col0_value}.\n" in prompt
    (prompt,) = items({"columns": [A, {"expr": "a.n"}], "options": {"intro": ["Read", "this:"], "closing": "Decide."}})
    assert prompt == "Read\nthis:\n- Column 1: Cheap.\n  And safe.\n- Column 2: 3\nDecide."


def test_a_text_with_slots() -> None:
    text = "{role}: {col0_label} is {col0_value}, not {col1_value} or {col2_value} {json: 1} ${a.n}"
    (prompt,) = items({"name": "mine", "text": text, "columns": [{"label": "N", "expr": "a.n"}, B]})
    assert prompt == "energy strategist: N is 3, not Dear {col0_value}. or {col2_value} {json: 1} 3"


@pytest.mark.parametrize("path", ["none", "missing", "items[9].output"])
def test_a_value_that_is_not_there(path: str) -> None:
    column = {"label": "Risk", "node": "a", "path": path}
    with pytest.raises(ReferenceFault, match=r"^spec.data.template: Column 'Risk' has no value and no default: "):
        items({"text": "{col0_value}", "columns": [column]})
    assert items({"text": "{col0_value}", "columns": [{**column, "default": "low"}]}) == ["low"]
    assert items({"text": "{col0_value}", "columns": [{**column, "default": 0}]}) == ["0"]


def test_format_makes_a_prompt_of_each_entry() -> None:
    template = {
        "name": "format",
        "columns": [
            {"label": "answer", "node": "a", "path": "items.output"},
            {"label": "other", "expr": "b.items.output"},
            {"label": "question", "data": {"type": "list", "items": ["Why?"]}},
        ],
        "options": {
            "format": {
                "steps": [
                    {
                        "label": "pair",
                        "template": "{x} / {other}",
                        "arguments": [{"label": "x", "value": "answer"}],
                    }
                ],
                "messages": [{"role": "system", "content": "Judge."}, {"content": "{question} {pair} {unknown}"}],
            }
        },
    }
    assert items(template) == [
        "Judge.\n\nWhy? Cheap.\nAnd safe. / Dear {col0_value}. {unknown}",
        "Judge.\n\nWhy? Slow. / Fast. {unknown}",
    ]
    template["columns"][2] = {"label": "question", "data": {"type": "list", "items": ["1", "2", "3"]}}  # type: ignore[index]
    with pytest.raises(ReferenceFault, match="Column 'answer' has 2 entries, but another one has 3"):
        items(template)


def test_the_system_prompt_stands_before_it_only_where_asked() -> None:
    template: dict[str, Any] = {"columns": [A, B]}
    for asked, kept in ((False, {}), (True, {"system_prompt": "Be brief."})):
        data = {"type": "graph_template", "template": {**template, "append_system_prompt": asked}}
        found = resolve({"data": data, "inference": {"system_prompt": "Be brief."}}, RESULTS)
        assert found["inference"] == kept


def test_what_comes_out_is_a_good_spec() -> None:
    data = {"type": "graph_template", "template": {"columns": [A, B]}}
    spec = load_task_spec(resolve({"taskType": "echo", "data": data}, RESULTS))
    assert spec.task_type == "echo"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{name: x, columns: [{expr: a.n}]}", "'x' is not built in"),
        ("{name: two_column_briefing, columns: [{expr: a.n}]}", "needs at least two columns"),
        ("{text: t, columns: [{node: a}]}", "needs both node and path"),
        ("{text: t, columns: [{node: a, path: n, expr: a.n}]}", "needs exactly one of node with path, expr and data"),
        ("{text: t, columns: []}", "must have at least 1 entry"),
        ("{text: t, columns: [{expr: a}]}", "is not a node with a path"),
        ("{text: t, columns: [{node: zz, path: n}]}", "zz.n refers to no task of this workflow"),
        ("{text: t, columns: [{expr: a.n, lable: x}]}", "is not a known key"),
        ("{name: format, columns: [{expr: a.n}]}", "`format` and `name: format` require each other"),
        ("{name: format, text: t, columns: [{expr: a.n}]}", "is not used by format"),
    ],
)
def test_a_wrong_template_is_refused_with_its_place(template: str, message: str) -> None:
    head = "apiVersion: tunefleet/v1\nspec:\n  taskType: echo\n  graph:\n    nodes:\n    - {name: a}\n    - name: b\n"
    with pytest.raises(SpecError) as caught:
        parse_workflow(f"{head}      spec: {{data: {{type: graph_template, template: {template}}}}}\n")
    assert any(message in fault.message for fault in caught.value.faults), str(caught.value)
    assert all(fault.line == 8 and fault.column > 40 for fault in caught.value.faults), str(caught.value)


def test_a_template_of_written_values_is_known_at_once() -> None:
    columns = "[{data: {items: [x]}}, {data: {items: [y]}}]"
    head = "apiVersion: tunefleet/v1\nspec: {taskType: echo, data: {type: graph_template, template: "
    (task,) = parse_workflow(f"{head}{{text: '{{col1_value}} {{col0_value}}', columns: {columns}}}}}}}").tasks
    assert task.spec is not None
    assert task.raw["data"] == {"type": "list", "items": ['["y"] ["x"]']}
