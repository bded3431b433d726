"""Every fault has its place and a way out, and shows what was written in one line of plain characters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from tests.unit.spec.documents import training
from tests.unit.spec.kinds.whole_documents import specs
from tunefleet.errors import Fault, ReferenceFault, SpecError
from tunefleet.spec import TASK_KINDS, dump_task_spec, load_task_spec, parse_memory, parse_workflow, resolve

HEAD = "apiVersion: tunefleet/v1\nspec:\n  taskType: echo\n"
TWO = """\
  graph:
    nodes:
      - {name: a, spec: {data: {items: [x]}}}
      - name: b
        spec: {%s}
"""
HUGE = "9" * 23


def faults(text: str) -> list[Fault]:
    with pytest.raises(SpecError) as caught:
        parse_workflow(text)
    return list(caught.value.faults)


def only_fault(text: str) -> Fault:
    found = faults(text)
    assert len(found) == 1, [str(fault) for fault in found]
    return found[0]


def of_node(spec: str) -> str:
    return HEAD + TWO % spec


@pytest.mark.parametrize(
    ("spec", "path", "hint"),
    [
        ("data: {items: [x]}, dta: '${a.result.x}'", "dta", "did you mean data?"),
        ("data: {items: [x], itms: 'n ${a.result.x}'}", "data.itms", "did you mean items?"),
        (
            "data: {items: [x]}, resources: {hardware: {memroy: '${a.result.x}'}}",
            "resources.hardware.memroy",
            "did you mean memory?",
        ),
        (
            "data: {items: [{node: a, path: n, pth: '${a.result.x}'}]}",
            "data.items.0.pth",
            "known keys: node, path",
        ),
    ],
)
def test_a_misspelt_key_is_told_though_its_value_is_a_reference(spec: str, path: str, hint: str) -> None:
    fault = only_fault(of_node(spec))
    assert (fault.path, fault.hint) == (f"spec.graph.nodes.1.spec.{path}", hint)
    assert (fault.message, fault.line) == ("is not a known key", 8)


def test_a_misspelt_key_of_a_training_is_told_though_its_value_is_a_reference() -> None:
    text = training(stages="[{name: one}, {name: two, spec: {checkpoint: {laod: '${one.result.final_lora_path}'}}}]")
    fault = only_fault(text)
    assert (fault.path, fault.hint) == ("spec.stages.1.spec.checkpoint.laod", "did you mean load?")


def test_what_lies_below_a_reference_is_not_judged() -> None:
    text = training(stages="[{name: one}, {name: two, spec: {checkpoint: {load: '${one.result.data.load}'}}}]")
    assert [task.name for task in parse_workflow(text).tasks] == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "path", "line", "message"),
    [
        ("a: &a {<<: *a, b: 1}", "a", 1, "merges the anchor &a (line 1)"),
        ("a: &a {<<: [*a, *a], b: 1}", "a", 1, "merges the anchor &a (line 1)"),
        (
            "b0: &b0 {x: 1}\n" + "".join(f"b{n}: &b{n} {{<<: *b{n - 1}}}\n" for n in range(1, 1_500)),
            "b48",
            49,
            "is nested too deeply",
        ),
        ("a: &a {? [x] : 1}\nb: {<<: *a}", "a", 1, "has a key that is not a string"),
        (f"{HEAD}  data: {{items: [a]}}\n  priority: 0x{'f' * 6_000}", "spec.priority", 5, "is too large"),
        (f"{HEAD}  data: {{items: [1, {HUGE}]}}", "spec.data.items.1", 4, "is too large"),
        (f"{HEAD}  data: {{items: [a], metadata: [{{n: -{HUGE}}}]}}", "spec.data.metadata.0.n", 4, "is too large"),
        (f"{HEAD}  data: {{items: [a]}}\nmetadata: {{annotations: {{n: {HUGE}}}}}", "metadata.annotations.n", 5, "is"),
        (
            f"{HEAD}  data: {{items: [a]}}\n  resources: {{estimatedLoad: '{HUGE}'}}",
            "spec.resources.estimatedLoad",
            5,
            "is too large",
        ),
        (
            f"{HEAD}  data: {{items: [a]}}\n  resources: {{hardware: {{cpu: {HUGE}}}}}",
            "spec.resources.hardware.cpu",
            5,
            "is too large",
        ),
        (
            f"{HEAD}  data: {{items: [a]}}\n  resources: {{hardware: {{gpu: {{count: '{HUGE}'}}}}}}",
            "spec.resources.hardware.gpu.count",
            5,
            "is too large",
        ),
    ],
    ids=[
        "merges-itself", "merges-itself-twice", "chain-of-merges", "merged-key-that-is-no-text", "hexadecimal", "item",
        "metadata-of-an-item", "annotation", "load", "cores", "gpus",
    ],
)  # fmt: skip
def test_fault_38_what_was_an_error_of_ours_is_a_fault(text: str, path: str, line: int, message: str) -> None:
    fault = faults(text)[0]
    assert (fault.path, fault.line) == (path, line)
    assert fault.message.startswith(message)
    assert len(str(fault)) < 300


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))
    else:
        yield path


@pytest.mark.parametrize("kind", TASK_KINDS)
def test_fault_38_every_number_of_every_kind_fits_the_store(kind: str) -> None:
    for spec in specs(kind):
        for path in leaves(spec):
            for value in (HUGE, 1e23, "9" * 5_000):
                changed = orjson.loads(orjson.dumps(spec))
                place = changed
                for part in path[:-1]:
                    place = place[part]
                place[path[-1]] = value
                with contextlib.suppress(SpecError):
                    orjson.dumps(dump_task_spec(load_task_spec(changed)))


@pytest.mark.parametrize(
    ("spec", "path", "message", "hint"),
    [
        (
            "condition: {node: a, field: x, equals: [1]}",
            "condition.equals",
            "must be a string, a number",
            "compare a field with such a value",
        ),
        (
            "condition: {node: a, field: x, equals: null}",
            "condition.equals",
            "is required and must not be null",
            "Expected value",
        ),
        ("condition: {node: a, field: 'x[-1]', equals: 1}", "condition.field", "is not a path", "count from 0"),
        ("data: {items: ['${a.result.items[-1]}']}", "data.items.0", "counts from the end", "count from 0"),
        ("data: {items: [{node: a, path: 'items[-1]'}]}", "data.items.0", "is not a path", "count from 0"),
        ("resources: {hardware: {cpu: 0.5}}", "resources.hardware.cpu", "0.5 is not a number of cores", "such as 8"),
        ("stages: [{name: c}]", "stages", "cannot be nested in a task", "in the top-level graph"),
        ("graph: {nodes: []}", "graph", "cannot be nested in a task", "in the top-level graph"),
    ],
)
def test_faults_with_a_way_out(spec: str, path: str, message: str, hint: str) -> None:
    more = "" if spec.startswith("data") else ", data: {items: [x]}"
    fault = only_fault(of_node(spec + more))
    assert fault.path == f"spec.graph.nodes.1.spec.{path}"
    assert message in fault.message
    assert hint in str(fault.hint)
    assert (fault.line, fault.column > 1) == (8, True)


def test_limits_of_the_text_have_a_way_out() -> None:
    assert only_fault("a: &a [*a]").hint == "copy the values, or refer to an anchor outside of the value"
    assert "48 levels" in str(only_fault("[" * 60).hint)
    assert "are allowed; move data to a separate file, or submit several workflows" in str(
        only_fault(f"a: &a [{'x,' * 2_000}]\nb: [{'*a,' * 60}]").hint
    )
    assert only_fault("a: \x07").hint == ("remove it, or escape it in double quotes: \\x07 is U+0007")
    assert only_fault("a: \ud800").hint == "save it as UTF-8"
    assert only_fault(HEAD + "  stages: []\n  data: {items: [a]}").hint == "add one, or remove the key"


def test_long_values_are_cut() -> None:
    long = "x" * 5_000
    for text in (
        HEAD.replace("echo", long),
        training(resources=f"{{hardware: {{memory: '{long}', cpu: '{long}', gpu: {{memory: '{long}'}}}}}}"),
        of_node(f"data: {{items: ['${{{long}}}', '${{{long[:900]}.x}}']}}, {long[:900]}: 1"),
        of_node(f"dependsOn: [{long}], data: {{items: [x]}}"),
        f"a: !{long} 1",
    ):
        for fault in faults(text):
            assert long[:10] in str(fault)
            assert len(str(fault)) < 900, fault
    with pytest.raises(ValueError, match="is not an amount") as caught:
        parse_memory(long)
    assert len(str(caught.value)) < 100
    column = {"label": long[:4_000], "node": "a", "path": "x"}
    spec = {"data": {"type": "graph_template", "template": {"name": "t", "text": "{col0_value}", "columns": [column]}}}
    with pytest.raises(ReferenceFault) as unresolved:
        resolve(spec, {"a": {"result": {}}})
    assert len(str(unresolved.value)) < 300


def test_faults_do_not_command_the_terminal() -> None:
    text = f'{HEAD}  "\\e[31mkey": 1\n  data: {{items: ["${{\\e[31m}}", "${{a\\u202eb.c}}"]}}\n'
    found = faults(text)
    assert [fault.path for fault in found] == ["spec.\\x1b[31mkey", "spec.data.items.0", "spec.data.items.1"]
    assert str(SpecError(found)).isprintable()
    assert found[1].message.startswith("${\\x1b[31m} is neither")
    assert found[2].message.startswith("${a\\u202eb.c} refers to")
    assert str(Fault("a\nb", "c\x07", hint="\x9b31m")) == "a\\nb: c\\x07 (\\x9b31m)"


def test_data_of_another_type_take_nothing_of_what_all_share() -> None:
    text = f"""{HEAD}  data: {{type: list, items: [a, b], metadata: [{{}}, {{}}]}}
  output: {{destination: {{type: http, url: 'http://x/y', headers: {{A: b}}}}}}
  graph:
    nodes:
      - {{name: one}}
      - name: two
        spec:
          data: {{type: graph_template, template: {{name: t, text: '{{col0_value}}', columns: [{{expr: one.echo.x}}]}}}}
          output: {{destination: {{type: local}}}}
      - {{name: three, spec: {{data: {{type: list, items: [c, d]}}}}}}
"""
    one, two, three = parse_workflow(text).tasks
    assert one.raw["data"].keys() == three.raw["data"].keys() == {"type", "items", "metadata"}
    assert two.raw["data"].keys() == {"type", "template"}
    assert two.raw["output"] == {"destination": {"type": "local"}}
    unsaid = text.replace("{type: list, items: [a, b], metadata: [{}, {}]}", "{items: [a, b]}")
    fault = only_fault(unsaid)
    assert (fault.path, fault.line) == ("spec.data.items", 4)
    assert fault.hint == "remove one of them; `items: null` in a stage or node removes the shared value"
    parse_workflow(unsaid.replace("{type: graph_template,", "{type: graph_template, items: null,"))


STAGED = "apiVersion: tunefleet/v1\nspec:\n  stages:\n"


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        (
            f"{STAGED}  - name: a\n      spec: {{}}\n",
            5,
            "by 6 spaces, below line 4 with 4, which already",
            "by 4 spaces",
        ),
        (f"{STAGED}  - name: a\n  spec: {{taskType: echo}}\n", 5, "is not a known key", "like the name of its stage"),
        (f"{STAGED}    a: {{taskType: echo}}\n", 4, "must be a list, not a mapping", "start each entry with `- `"),
        ("apiVersion: tunefleet/v1\nspec:\ntaskType: echo\n", 3, "is not a known key", "indent it below spec"),
        (training(training="{learning_rate: 2,5e-5}"), 6, "a key that is not a string", "written without the comma"),
        (training(training="{max_seq_length: 4k}"), 6, "must be an integer, not '4k'", "write 4000"),
        (training(training="{warmup_ratio: 3%}"), 6, "must be a number, not '3%'", "write 0.03"),
        (training(limits="{max_runtime_s: 30m}"), 6, "must be a number, not '30m'", "write the seconds: 1800"),
        (training(resources="{gpus: 2}"), 6, "is not a known key", "it belongs to spec.resources.hardware.gpu.count"),
        (training(num_nodes="2"), 6, "is not a known key", "it belongs to spec.resources.nodes"),
        (training(lr="1e-4"), 6, "is not a known key", "it belongs to spec.training.learning_rate"),
        (training(resources="{hardware: {gpu: 2}}"), 6, "must be a mapping", "set gpu: {count: 2}"),
        (training(resources="{hardware: {gpu: A100}}"), 6, "must be a mapping", "set gpu: {type: A100}"),
        (
            training(taskType="lora_sft", lora="{target_modules: q_proj,v_proj}"),
            6,
            "not a known key",
            "it has no value",
        ),
        (training(data='{path: "C:\\x.jsonl"}'), 4, "\\x is not an escape sequence", "use single quotes"),
        (
            training(checkpoint="\n    load: uri: https://x"),
            7,
            "the value contains `: `",
            "put the whole value in quotes",
        ),
    ],
)
def test_mistakes_that_users_of_other_tools_report(text: str, line: int, message: str, hint: str) -> None:
    found = [fault for fault in faults(text) if message in fault.message and hint in (fault.hint or "")]
    assert [fault.line for fault in found] == [line], [str(fault) for fault in faults(text)]
