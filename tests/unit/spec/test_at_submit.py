"""Warnings at the submit: what is valid, and probably a mistake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunefleet.spec import parse_workflow
from tunefleet.spec.documents.submit_checks import new_faults, remarks

HEAD = """\
apiVersion: tunefleet/v1
metadata: {name: w}
spec:
  taskType: echo
  stages:
    - name: a
    - name: b
      spec: """
ARTIFACTS = "b: spec.output.artifacts lists"


LEFT = "which echo tasks do not create automatically; they create responses.json, results.json, logs."
VLLM = "taskType: inference, data: {items: [x], type: list}, model: {source: {identifier: m}, vllm: "
NO_EFFECT = "b: spec.model.vllm.release_after_run has no effect; an engine is unloaded when its memory is needed."


def stays(written: str, meant: str) -> str:
    return f"b: spec.data.items.0 contains {written}, which is not replaced; write the reference as {meant}."


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("{data: {items: ['{{a.output}}']}}", [stays("{{a.output}}", "${a.items[0].output}")]),
        ("{data: {items: ['{{a.result.items[2].output}}']}}",
         [stays("{{a.result.items[2].output}}", "${a.result.items[2].output}")]),
        ("{data: {items: ['x {{ a.b[0].c }} y {{a[0]}}']}}",
         [stays("{{ a.b[0].c }}", "${a.result.KEY}"), stays("{{a[0]}}", "${a.result.KEY}")]),
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


FP16 = """\
apiVersion: tunefleet/v1
metadata: {name: w}
spec: {taskType: sft, model: {source: {identifier: m}%s}, data: {prompts: [a]}, training: {%s},
       resources: {hardware: {gpu: {count: %d}}}}
"""


@pytest.mark.parametrize(
    ("config", "training", "count", "path"),
    [
        ("", "fp16: true", 0, "spec.training.fp16"),
        (", config: {fp16: true}", "", 0, "spec.model.config.fp16"),
        ("", "fp16: true", 1, None),
        ("", "fp16: false", 0, None),
        ("", "bf16: true", 0, None),
    ],
)
def test_fp16_without_a_gpu_is_refused_in_a_new_task_only(
    config: str, training: str, count: int, path: str | None
) -> None:
    workflow = parse_workflow(FP16 % (config, training, count))  # as a server reads tasks that it has stored
    found = new_faults((node, node.spec) for node in workflow.tasks)
    assert [fault.path for fault in found] == ([path] if path else [])
    assert all(
        "contradicts resources.hardware.gpu.count: 0, since fp16 requires a GPU" in fault.message for fault in found
    )


@pytest.mark.parametrize("text", ["{{" + " " * 2_000_000, "{{a." * 300_000, "{{" + "a" * 2_000_000, "{{a.b}" * 200_000])
def test_no_text_takes_long(text: str) -> None:
    node, other = parse_workflow(HEAD + "{}").tasks
    found = remarks([(node, node.spec), (replace(other, raw={"data": {"items": [text]}}), other.spec)])
    assert len(found) <= 21  # what takes the square of its length does not end within the test's time


def test_a_document_with_many_of_them_says_how_many_more_there_are() -> None:
    items = ", ".join(["'{{a.output}}'"] * 25)
    workflow = parse_workflow(f"{HEAD}{{data: {{items: [{items}]}}}}")
    found = remarks((node, node.spec) for node in workflow.tasks)
    assert (len(found), found[-1]) == (21, "5 more warnings are not shown.")
