"""What is remarked on at the submit: it is allowed, and may not be meant."""

from __future__ import annotations

import pytest

from tunefleet.spec import parse_workflow
from tunefleet.spec.at_submit import remarks

HEAD = """\
apiVersion: tunefleet/v1
metadata: {name: w}
spec:
  taskType: echo
  stages:
    - name: a
    - name: b
      spec: """
ARTIFACTS = "b: spec.output.artifacts names"


LEFT = "which echo tasks do not leave by themselves; they leave responses.json, results.json, logs."
VLLM = "taskType: inference, data: {items: [x], type: list}, model: {source: {identifier: m}, vllm: "
NO_EFFECT = "b: spec.model.vllm.release_after_run has no effect; an engine goes when its memory is needed."


def stays(written: str, meant: str) -> str:
    return f"b: spec.data.items.0 has {written}, which stays as it is; a reference is written {meant}."


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("{data: {items: ['{{a.output}}']}}", [stays("{{a.output}}", "${a.output}")]),
        ("{data: {items: ['x {{ a.b[0].c }} y {{a[0]}}']}}",
         [stays("{{ a.b[0].c }}", "${a.b[0].c}"), stays("{{a[0]}}", "${a[0]}")]),
        ("{data: {items: ['{{prompt}}', '{{ user.name }}', '{a.output}', '${a.items}']}}", []),
        ("{taskType: python, code: \"def main(inputs): return '{{a.output}}'\"}", []),
        ("{output: {artifacts: [responses.json, logs, train.log, results.json]}}", []),
        ("{output: {artifacts: [final_lora, mine/x.json]}}",
         [f"{ARTIFACTS} 'final_lora', {LEFT}", f"{ARTIFACTS} 'mine/x.json', {LEFT}"]),
        (f"{{{VLLM}{{release_after_run: true}}}}}}", [NO_EFFECT]),
        (f"{{{VLLM}{{release_after_run: false}}}}}}", []),
    ],
)  # fmt: skip
def test_remarks(spec: str, said: list[str]) -> None:
    workflow = parse_workflow(HEAD + spec)
    assert remarks((node, node.spec) for node in workflow.tasks) == said


def test_a_document_with_many_of_them_says_how_many_more_there_are() -> None:
    items = ", ".join(["'{{a.output}}'"] * 25)
    workflow = parse_workflow(f"{HEAD}{{data: {{items: [{items}]}}}}")
    found = remarks((node, node.spec) for node in workflow.tasks)
    assert (len(found), found[-1]) == (21, "5 more remarks of this kind are not shown.")
