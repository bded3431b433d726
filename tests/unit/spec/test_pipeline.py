"""Stages and graphs: what each task becomes, and every fault at once, where it was written."""

from __future__ import annotations

import pytest

from tunefleet.errors import Fault, InputError, SpecError
from tunefleet.spec import TaskNode, dump_task_spec, load_task_spec, local_paths, override_document, parse_workflow


def document(spec: str) -> str:
    lines = "".join(f"  {line}\n" for line in spec.strip("\n").splitlines())
    return f"apiVersion: tunefleet/v1\nspec:\n  taskType: echo\n{lines}"


def tasks(spec: str) -> dict[str, TaskNode]:
    return {task.name: task for task in parse_workflow(document(spec)).tasks}


def edges(spec: str) -> dict[str, tuple[str, ...]]:
    return {name: task.depends_on for name, task in tasks(spec).items()}


def faults(spec: str) -> list[Fault]:
    with pytest.raises(SpecError) as caught:
        parse_workflow(document(spec))
    return list(caught.value.faults)


def only_fault(spec: str) -> Fault:
    found = faults(spec)
    assert len(found) == 1, [str(fault) for fault in found]
    return found[0]


def test_a_stage_without_depends_on_follows_the_one_before() -> None:
    assert edges("stages: [{name: a}, {id: b}, {}, {name: d, dependsOn: [a]}, {name: e, dependsOn: []}]") == {
        "a": (),
        "b": ("a",),
        "stage-3": ("b",),
        "d": ("a",),
        "e": (),
    }


def test_nodes_of_a_graph_depend_on_nothing_by_themselves() -> None:
    found = edges("graph: {nodes: [{name: z, dependsOn: [a, node-3]}, {name: a}, {}]}")
    assert found == {"z": ("a", "node-3"), "a": (), "node-3": ()}


def test_a_reference_is_a_dependency_wherever_the_stage_is_listed() -> None:
    found = edges(
        """
graph:
  nodes:
    - {name: last, spec: {data: {items: ["${mid.result.items[0].output} and ${first.task_id}"]}}}
    - {name: mid, spec: {data: {items: ["${first.echo.text}"]}}}
    - {name: first}
"""
    )
    assert found == {"last": ("mid", "first"), "mid": ("first",), "first": ()}


def test_a_name_with_dots_is_found_in_a_reference() -> None:
    found = edges(
        "stages: [{name: v1.5}, {name: v1}, {name: c, dependsOn: [], spec: {data: {items: ['${v1.5.echo.x}']}}}]"
    )
    assert found["c"] == ("v1.5",)


def test_what_was_submitted_before() -> None:
    found = tasks("dependsOn: [task-1, whatever-2]\ndata: {items: ['${task-7.result.x}']}")
    assert found["task"].external == ("task-1", "whatever-2", "task-7")
    found = tasks("stages: [{name: a, dependsOn: [task-1]}, {name: b, dependsOn: [a, task-2]}]")
    assert [(task.depends_on, task.external) for task in found.values()] == [((), ("task-1",)), (("a",), ("task-2",))]
    found = tasks("dependsOn: [task-1]\nstages: [{name: a}, {name: b}]")
    assert [(task.depends_on, task.external) for task in found.values()] == [
        ((), ("task-1",)),
        (("a",), ("task-1",)),
    ]


def test_a_stage_is_merged_into_what_all_share() -> None:
    found = tasks(
        """
resources: {hardware: {cpu: 2, memory: 1Gi}, tags: [a]}
limits: {max_runtime_s: 60}
stages:
  - {name: a, spec: {resources: {hardware: {cpu: 4}, tags: [b, c]}}}
  - {name: b, spec: {limits: null}}
"""
    )
    a, b = (task.spec for task in found.values())
    assert a is not None
    assert b is not None
    assert (a.resources.hardware.cpu, a.resources.hardware.memory_bytes, a.resources.tags) == (4, 1 << 30, ("b", "c"))
    assert (b.resources.hardware.cpu, b.limits.max_runtime_s) == (2, None)
    assert load_task_spec(dump_task_spec(a)) == a


def test_what_a_kind_does_not_take_is_left_to_the_stages_that_do() -> None:
    text = """
model: {source: {identifier: m}}
training: {max_steps: 3}
stages: [{name: a}, {name: b, spec: {taskType: sft, data: {path: x}}}]
"""
    a, b = tasks(text).values()
    assert set(a.raw) == {"taskType"}
    assert b.raw["training"] == {"max_steps": 3}
    fault = only_fault("training: {max_steps: 3}\nstages: [{name: a}, {name: b}]")
    assert (fault.line, fault.path) == (4, "spec.training"), "no stage takes it, and it is told once"


def test_null_leaves_out_what_all_share() -> None:
    text = """apiVersion: tunefleet/v1
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {path: "builtin:gsm8k"}
  lora: {r: 4}
  stages:
    - name: a
    - {name: b, spec: {taskType: echo, model: null, lora: null, data: {path: null, items: ["${a.task_id}"]}}}
    - {name: c, spec: {taskType: echo, model: null, lora: null, data: {path: null}}}
"""
    found = {task.name: task for task in parse_workflow(text).tasks}
    assert found["b"].raw == {"taskType": "echo", "data": {"items": ["${a.task_id}"]}}
    assert found["c"].spec is not None
    assert found["a"].raw["data"] == {"path": "builtin:gsm8k"}
    fault = only_fault("lora: null\nlora_: null")
    assert (fault.path, fault.message) == ("spec.lora_", "is not a known key")


def test_a_misspelt_task_type_that_all_share_is_one_fault() -> None:
    text = document("graph: {nodes: [{name: a, spec: {data: {items: [1]}}}, {name: b}, {name: c}]}")
    with pytest.raises(SpecError) as caught:
        parse_workflow(text.replace("taskType", "tasktype"))
    (fault,) = caught.value.faults
    assert (fault.path, fault.line, fault.hint) == ("spec.tasktype", 3, "did you mean taskType?")


def test_a_value_may_be_a_reference_where_a_number_or_a_block_is_expected() -> None:
    found = tasks(
        """
stages:
  - name: a
  - name: b
    spec:
      taskType: lora_sft
      model: {source: {identifier: "${a.result.echo.model}"}}
      data: {path: "${a.result.echo.path}", max_samples: "${a.result.echo.n}0"}
      training: "${a.result.echo.training}"
      lora: {r: "${a.result.echo.r}", target_modules: "${a.result.echo.modules}"}
      limits: {max_runtime_s: 60}
"""
    )
    assert found["b"].spec is None
    wrong = faults(
        """
stages:
  - name: a
  - name: b
    spec:
      taskType: lora_sft
      model: {source: {identifier: "${a.result.model}", revisoin: x}}
      data: {path: "${a.result.path}", max_samples: 0}
      training: "see ${a.result.training}"
      lora: {r: "${a.result.r}", alpha: -1}
      output: {artifacts: [../final_model]}
"""
    )
    assert [(fault.line, fault.column, fault.path.removeprefix("spec.stages.1.spec.")) for fault in wrong] == [
        (9, 59, "model.source.revisoin"),
        (10, 55, "data.max_samples"),
        (11, 19, "training"),
        (12, 43, "lora.alpha"),
        (13, 30, "output.artifacts.0"),
    ]


def test_fault_11_a_forward_reference_starts_in_the_right_order() -> None:
    found = edges("stages: [{name: a, dependsOn: [b]}, {name: b, dependsOn: []}]")
    assert found == {"a": ("b",), "b": ()}


@pytest.mark.parametrize(
    ("spec", "column", "message", "hint"),
    [
        (
            "stages: [{name: prepare}, {name: b, dependsOn: [prepair]}]",
            51,
            "'prepair' is not a task of this workflow",
            "did you mean prepare?",
        ),
        ("stages: [{name: a}, {name: b, dependsOn: [b]}]", 45, "b waits for itself", "name another task"),
        ("stages: [{name: a, spec: {taskType: eco}}]", 39, "'eco' is not a known task type", "did you mean echo?"),
        ("stages: [{name: a}, {name: a}]", 30, "'a' is already the name of the task in line 4", "use a unique name"),
        ("stages: [{name: stage-2}, {}]", 29, "'stage-2' is already the name of", "use a unique name"),
        ("stages: [{name: a, id: b}]", 26, "differs from name", "remove one of them"),
        ("stages: [{name: a, dataa: 1}]", 22, "is not a known key", "known keys: dependsOn, id, name, spec"),
        ("stages: [{name: a, data: 1}]", 22, "is not a known key", "move it to the `spec` of that stage"),
        ("graph: {nodes: [{name: 'a/b'}]}", 26, "must be one line of", None),
        ("graph: {nodes: []}", 18, "must have at least 1 entry", None),
        ("graph: {}", 3, "is required", "The tasks"),
        (
            "stages: [{name: a}]\n  graph: {nodes: [{name: b}]}",
            3,
            "cannot be combined with stages",
            "remove one of them",
        ),
        (
            "stages: [{name: a, spec: {data: {items: ['${b.text}']}}}]",
            44,
            "${b.text} refers to no task of this workflow",
            None,
        ),
        (
            "condition: {node: task-1, field: x, equals: '${a.b}'}",
            47,
            "cannot be a reference",
            "write the value itself",
        ),
        ("condition: {node: task-1, field: 'x[', equals: 1}", 36, "is not a path", "write it like result.items[0]"),
        ("condition: {node: a, field: x}", 3, "is required", "Expected value"),
    ],
)
def test_fault_11_what_would_hang_is_refused(spec: str, column: int, message: str, hint: str | None) -> None:
    fault = faults(spec.replace("\n  ", "\n"))[0]
    assert message in fault.message
    assert fault.column == column, str(fault)
    assert fault.line in {4, 5}
    if hint:
        assert fault.hint is not None
        assert hint in fault.hint


@pytest.mark.parametrize(
    ("spec", "circle"),
    [
        (
            "graph: {nodes: [{name: a, dependsOn: [c]}, {name: b, dependsOn: [a]}, {name: c, dependsOn: [b]}]}",
            "a → c → b → a",
        ),
        ("stages: [{name: a, spec: {data: {items: ['${b.text}']}}}, {name: b}]", "a → b → a"),
        ("stages: [{name: a, spec: {condition: {node: b, field: x, equals: 1}}}, {name: b}]", "a → b → a"),
    ],
)
def test_fault_11_a_circle_is_named(spec: str, circle: str) -> None:
    fault = only_fault(spec)
    assert fault.message == f"these tasks depend on each other: {circle}"
    assert fault.line == 4
    assert fault.path.startswith(("spec.stages.0", "spec.graph.nodes.0")), "where somebody wrote it"
    if "stages" in spec:
        assert fault.hint == "b follows a in the list; set `dependsOn: []` if it does not depend on it"


def test_fault_26_needs_that_cannot_be_read_are_refused_deep_in_a_stage_too() -> None:
    found = faults("stages: [{name: a, spec: {resources: {hardware: {memory: lots, cpu: 8c}}}}]")
    assert [(fault.path, fault.column) for fault in found] == [
        ("spec.stages.0.spec.resources.hardware.memory", 60),
        ("spec.stages.0.spec.resources.hardware.cpu", 71),
    ]


def test_all_faults_of_all_stages_come_at_once() -> None:
    found = faults(
        """
retry: {max_attempts: 0}
stages:
  - name: a
    spec: {limits: {max_runtime: 1}}
  - name: b
    dependsOn: [c]
    spec: {retry: {max_attempts: 2}, data: {itms: [x]}}
"""
    )
    assert [(fault.line, fault.column, fault.path) for fault in found] == [
        (4, 25, "spec.retry.max_attempts"),
        (7, 23, "spec.stages.0.spec.limits.max_runtime"),
        (9, 19, "spec.stages.1.dependsOn.0"),
        (10, 47, "spec.stages.1.spec.data.itms"),
    ]
    assert found[0].message.endswith("(in a)"), "the other stage says something else"


def test_fault_37_a_variable_is_not_taken_for_a_secret() -> None:
    fault = only_fault("data: {items: ['key: ${QDRANT_API_KEY}']}")
    assert fault.message == "${QDRANT_API_KEY} is not replaced: environment variables are not expanded"
    assert fault.hint == "write ${secret:QDRANT_API_KEY} for a secret of the worker, or $${ for a literal ${"
    (task,) = tasks("data: {items: ['key: ${secret:QDRANT_API_KEY}', 'literally $${QDRANT_API_KEY}']}").values()
    assert task.spec is not None
    assert task.raw["data"]["items"][1] == "literally $${QDRANT_API_KEY}"
    for text, problem in (
        ("${", "is not closed"),
        ("${secret:a-b}", "is not a valid secret name"),
        ("${x}", "neither"),
    ):
        assert problem in only_fault(f"data: {{items: ['{text}']}}").message


@pytest.mark.parametrize(
    "text", ["a: [", "\t", "- 1", "", "a: 1\n---\nb: 2", "{", "!!python/object:os.system x", "\x00"]
)
def test_fault_38_whatever_is_no_document_is_a_fault_with_words(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_workflow(text)
    assert all(fault.message for fault in caught.value.faults)


def test_a_task_is_found_by_its_name() -> None:
    workflow = parse_workflow(document("stages: [{name: a}, {name: b}]"))
    assert workflow.task("b").name == "b"
    assert parse_workflow(document("")).task().name == "task"
    with pytest.raises(InputError, match=r"^task has 2 tasks. Choose one with --task: a, b.$"):
        workflow.task()
    with pytest.raises(InputError, match=r"^task has no task 'c'. It has a, b.$"):
        workflow.task("c")


def test_local_files_of_every_stage_are_found() -> None:
    text = """
model: {source: {identifier: ./base}}
stages:
  - {name: a, spec: {taskType: lora_sft, data: {path: a.jsonl}, output: {artifacts: [final_lora.tar.gz]}}}
  - name: b
    spec:
      taskType: lora_sft
      data: {path: b.jsonl, max_samples: "${a.result.steps}"}
      checkpoint: {load: {type: http, url: "${a.result.final_lora_archive_url}"}}
"""
    found = {name: [(each.pointer, each.value) for each in local_paths(task.raw)] for name, task in tasks(text).items()}
    assert found == {
        "a": [("model.source.identifier", "./base"), ("data.path", "a.jsonl")],
        "b": [("model.source.identifier", "./base"), ("data.path", "b.jsonl")],
    }


def test_a_stage_is_changed_by_its_name() -> None:
    text = document("stages: [{name: a}, {id: b, spec: {priority: 1}}]")
    changed = override_document(text, {"stages.b.spec.priority": 5, "priority": 2})
    assert [task.spec.priority for task in parse_workflow(changed).tasks if task.spec] == [2, 5]
    with pytest.raises(SpecError, match="is not an entry of the list, which has a, b"):
        override_document(text, {"stages.c.spec.priority": 5})
