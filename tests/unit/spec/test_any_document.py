"""Whatever somebody writes is either a workflow or a list of faults with words, never an error of ours."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tunefleet.errors import Fault, ReferenceFault, SpecError
from tunefleet.spec import Workflow, load_task_spec, local_paths, parse_workflow, resolve, secrets_of
from tunefleet.spec.tasks.task_types import TASK_KINDS

WORDS = st.sampled_from(
    ["a", "b", "task-1", "echo", "graph_template", "list", "${a.x}", "${a.result.items.0.output}", "${b.task_id}", "${",
     "${X}", "${secret:T}", "$${", "x ${a.n} y", "items.0", "result.items[0]", "", " "]
)  # fmt: skip
KEYS = st.sampled_from(
    ["taskType", "stages", "graph", "nodes", "name", "id", "spec", "dependsOn", "condition", "node", "field", "equals",
     "data", "type", "items", "path", "template", "columns", "expr", "default", "text", "options", "model", "training",
     "resources", "hardware", "gpu", "output", "artifacts", "limits", "inference", "parallel"]
)  # fmt: skip
LEAVES = st.one_of(WORDS, st.none(), st.booleans(), st.integers(-2, 3), st.floats(allow_nan=False, width=16))
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
DATA = st.one_of(
    TREES,
    st.fixed_dictionaries({"items": st.lists(WORDS | st.fixed_dictionaries({"node": WORDS, "path": WORDS}))}),
    st.fixed_dictionaries({"type": st.just("graph_template"), "template": TREES}),
)
TASKS = st.dictionaries(KEYS, TREES, max_size=2).flatmap(
    lambda more: st.fixed_dictionaries(
        {"taskType": st.sampled_from(list(TASK_KINDS)) | WORDS},
        optional={"data": DATA, "condition": TREES, "dependsOn": TREES | st.lists(WORDS, max_size=2)},
    ).map(lambda task: more | task)
)
NODES = st.lists(
    st.one_of(
        st.fixed_dictionaries({}, optional={"name": WORDS, "spec": TASKS, "dependsOn": st.lists(WORDS, max_size=2)}),
        st.dictionaries(KEYS, TREES, max_size=3),
        TREES,
    ),
    max_size=4,
)
SPECS = st.one_of(
    TASKS,
    TREES,
    st.fixed_dictionaries({"taskType": st.just("echo"), "stages": NODES}),
    st.fixed_dictionaries({"taskType": st.just("echo"), "graph": st.fixed_dictionaries({"nodes": NODES}) | TREES}),
    st.fixed_dictionaries({"stages": NODES | TREES, "graph": TREES}),
)
RESULTS = {
    name: {
        "task_id": name,
        "worker_id": "w",
        "metadata": {},
        "received_at": "",
        "result": {"x": 1, "n": [1], "items": []},
    }
    for name in ("a", "b", "task-1")
}


@settings(max_examples=75)
@example({"taskType": []})
@given(SPECS)
def test_a_document_is_read_or_refused(spec: Any) -> None:
    text = json.dumps({"apiVersion": "tunefleet/v1", "metadata": {"name": "any"}, "spec": spec})
    workflow = read(text)
    if not isinstance(workflow, Workflow):
        assert workflow
        assert all(fault.message and fault.line == 1 and fault.column > 0 for fault in workflow)
        return
    names = [task.name for task in workflow.tasks]
    assert len(names) == len(set(names))
    for task in workflow.tasks:
        assert set(task.depends_on) < set(names) or task.depends_on == ()
        assert task.name not in task.depends_on
        assert {"dependsOn", "condition", "stages", "graph"}.isdisjoint(task.raw)
        json.dumps(task.raw)
        local_paths(task.raw)
        secrets_of(task.raw)
        assert resolves(task.raw) or task.spec is None, "what has no references is good already"


def read(text: str) -> Workflow | tuple[Fault, ...]:
    try:
        return parse_workflow(text, filename="any.yaml")
    except SpecError as refused:
        return refused.faults


def resolves(raw: dict[str, Any]) -> bool:
    try:
        load_task_spec(resolve(raw, RESULTS))
    except (ReferenceFault, SpecError):
        return False
    return True
