"""A document before it is sent: what `--set` makes of it, and the local files that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunefleet.client.submission import override, read_workflow
from tunefleet.errors import SpecError

HEAD = "apiVersion: tunefleet/v1\nmetadata: {name: w}\nspec:\n"
STAGES = """\
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {prompts: [a]}
  stages:
    - {name: one, spec: {taskType: sft}}
    - {name: two, spec: {taskType: sft, checkpoint: {load: {type: http, url: "${one.final_model_archive_url}"}}}}
"""


@pytest.mark.parametrize(
    ("spec", "changes", "lines", "says"),
    [
        ("  taskType: echo\n", {"data": {"items": ["a"]}}, None, None),
        (STAGES, {"output.destination": {"type": "http"}}, None, None),
        (STAGES, {"priority": 3}, [8], "one creates no archive"),
        ("  taskType: echo\n  priorty: 1\n", {"data": {"items": ["a"]}}, [5], "priorty"),
        ("  taskType: echo\n", {"priority": 1000}, [0], "with these changes"),
    ],
)
def test_changes_may_complete_a_document_and_what_stays_wrong_has_its_line(
    spec: str, changes: dict[str, object], lines: list[int] | None, says: str | None
) -> None:
    if says is None:
        changed, workflow = override(HEAD + spec, changes)
        assert changed != HEAD + spec
        assert workflow.tasks
        return
    with pytest.raises(SpecError) as caught:
        override(HEAD + spec, changes, filename="w.yaml")
    assert [fault.line for fault in caught.value.faults] == lines
    assert says in str(caught.value)


MISSING = """\
  model: {source: {identifier: ./base}}
  stages:
    - {name: prepare, spec: {taskType: datta, sources: [{path: raw.jsonl}]}}
    - name: train
      spec:
        taskType: sft
        data: {path: rosw.jsonl}
        training: {batch_siz: 2}
    - {name: run, spec: {taskType: command, command: [python, x.py], workdir: ./code, files: [x.py]}}
"""


def test_missing_files_are_listed_in_order_with_all_other_errors(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(SpecError) as caught:
        read_workflow(HEAD + MISSING, {}, tmp_path, filename="w.yaml")
    found = caught.value.faults
    assert [(fault.line, fault.column, fault.path) for fault in found] == [
        (4, 32, "spec.model.source.identifier"),
        (6, 40, "spec.stages.0.spec.taskType"),
        (6, 64, "spec.stages.0.spec.sources.0.path"),
        (10, 22, "spec.stages.1.spec.data.path"),
        (11, 20, "spec.stages.1.spec.training.batch_siz"),
        (12, 79, "spec.stages.2.spec.workdir"),
        (12, 95, "spec.stages.2.spec.files.0"),
    ]
    assert found[0].message == f"./base not found at {tmp_path}/base (in train)"
    assert found[2].message == f"raw.jsonl not found at {tmp_path}/raw.jsonl (in prepare)"
    assert found[3].hint == "did you mean rows.jsonl, in the same folder?"
    assert found[5].hint == "paths are relative to the folder of the workflow file"


def test_a_missing_file_comes_with_what_only_a_submit_refuses(tmp_path: Path) -> None:
    text = """\
  taskType: sft
  model: {source: {identifier: org/model}}
  data: {path: rows.jsonl}
  training: {fp16: true}
  resources: {hardware: {gpu: {count: 0}}}
"""
    with pytest.raises(SpecError) as caught:
        read_workflow(HEAD + text, {}, tmp_path)
    assert [fault.path for fault in caught.value.faults] == ["spec.data.path", "spec.training.fp16"]


def test_rows_that_do_not_fit_have_a_line(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "a", "answer": "b"}\n')
    text = (
        "  taskType: sft\n  model: {source: {identifier: org/model}}\n  data: {path: rows.jsonl, text_field: reply}\n"
    )
    with pytest.raises(SpecError) as caught:
        read_workflow(HEAD + text, {}, tmp_path)
    (fault,) = caught.value.faults
    assert (fault.path, fault.line, fault.column) == ("spec.data.text_field", 6, 40), "the key that names the column"
    assert fault.message == "rows.jsonl has no column 'reply'"
    assert fault.hint == "it has: answer, question. Set `data.text_field`"


def test_columns_of_a_built_in_dataset_are_checked(tmp_path: Path) -> None:
    text = """apiVersion: tunefleet/v1
metadata: {name: a}
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {path: "builtin:gsm8k", prompt_column: questin, response_column: answer}
"""
    with pytest.raises(SpecError) as failed:
        read_workflow(text, {}, tmp_path)
    (fault,) = failed.value.faults
    assert (fault.path, fault.line, fault.message) == (
        "spec.data.prompt_column", 6, "train.jsonl has no column 'questin'",
    )  # fmt: skip


def test_an_override_of_a_missing_file_and_an_error_that_stays(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    text = "  taskType: sft\n  model: {source: {identifier: ./base}}\n  data: {path: gone.jsonl}\n"
    with pytest.raises(SpecError) as caught:
        read_workflow(HEAD + text, {"data.path": "rows.jsonl"}, tmp_path, filename="w.yaml")
    assert [(fault.path, fault.line) for fault in caught.value.faults] == [("spec.model.source.identifier", 5)]
    assert caught.value.filename == "w.yaml"
    with pytest.raises(SpecError, match="with these changes") as caught:
        read_workflow(HEAD + text, {"data.path": "none.jsonl"}, tmp_path, filename="w.yaml")
    assert [(fault.path, fault.line) for fault in caught.value.faults] == [
        ("spec.model.source.identifier", 5),
        ("spec.data.path", 0),
    ]
