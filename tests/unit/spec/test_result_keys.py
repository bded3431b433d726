"""A reference that can have no value is refused when it is submitted, not after hours of the stage before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tunefleet.errors import SpecError
from tunefleet.spec import parse_workflow
from tunefleet.spec.expressions.result_keys import RESULT_KEYS
from tunefleet.spec.tasks.task_types import TASK_KINDS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "results.md"

LORA = "taskType: lora_sft, model: {source: {identifier: m}}, data: {prompts: [a]}"
KINDS = {
    "lora_sft": LORA,
    "sft": LORA.replace("lora_sft", "sft"),
    "dpo": "taskType: dpo, model: {source: {identifier: m}}, data: {path: p.jsonl}, lora: {}",
    "echo": "taskType: echo, data: {type: list, items: [a]}",
    "inference": "taskType: inference, model: {source: {identifier: m}}, data: {type: list, items: [a]}",
    "merge": "taskType: merge, model: {source: {identifier: m}, adapters: [{path: a/b}]}",
    "merge with gguf": "taskType: merge, model: {source: {identifier: m}, adapters: [{path: a/b}]}, merge: {gguf: {}}",
    "inference with export": "taskType: inference, model: {source: {identifier: m}}, data: {type: list, items: [a]}, "
    "postprocess: {jsonl_export: {path: rows.jsonl, fields: {a: output}}}",
    "python": "taskType: python, code: 'def main(): return {}'",
}
MERGE = KINDS["merge"]
BOTH = MERGE.replace("[{path: a/b}]", "[{path: a/b}, {path: a/c}]")
PACKED = "output: {artifacts: [final_lora.tar.gz]}"
BY_HTTP = "output: {destination: {type: http}}"


def document(first: str, value: str) -> str:
    return f"""apiVersion: tunefleet/v1
kind: Workflow
metadata: {{name: w}}
spec:
  stages:
    - name: one
      spec: {{{first}}}
    - name: two
      spec: {{taskType: echo, data: {{type: list, items: ["{value}"]}}}}
"""


def fault(first: str, value: str) -> tuple[str, str | None] | None:
    """Return what is said of a reference to the first stage, and the way out; None if it is taken."""
    try:
        parse_workflow(document(first, value))
    except SpecError as error:
        (found,) = error.faults
        assert found.path.startswith("spec.stages.1.spec.data.items.0")
        assert found.line == 9
        return found.message, found.hint
    return None


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("lora_sft", "losses.held_out_after"),
        ("lora_sft", "final_lora_path"),
        ("sft", "final_model_path"),
        ("dpo", "final_lora_path"),
        ("dpo", "held_out.after"),
        ("echo", "items[0].output"),
        ("echo", "parts[0].items"),
        ("inference", "usage.total_tokens"),
        ("merge", "final_model_path"),
        ("merge with gguf", "gguf.path"),
        ("inference with export", "jsonl_export.path"),
        ("python", "whatever.it[0].returns"),
        ("python", "final_lora_archive_url"),
    ],
)
def test_what_a_stage_leaves_may_be_named(kind: str, key: str) -> None:
    for prefix in ("", "result."):
        assert fault(KINDS[kind], f"${{one.{prefix}{key}}}") is None
    assert fault(KINDS[kind], "${one.task_id} ${one.worker_id}") is None


@pytest.mark.parametrize("end", ["", "_url", "_path", "_bytes"])
def test_an_archive_may_be_named_where_one_is_made(end: str) -> None:
    value = f"${{one.final_lora_archive{end}}}"
    for output in (PACKED, BY_HTTP):
        assert fault(f"{LORA}, {output}", value) is None
    message, hint = fault(LORA, value) or ("", "")
    assert message == f"{value} has no value: one creates no archive"
    assert hint is not None
    assert "artifacts: [final_lora.tar.gz]" in hint


@pytest.mark.parametrize(
    ("first", "value", "message", "hint"),
    [
        (KINDS["lora_sft"], "${one.loss}", "the result of a lora_sft task has no 'loss'", "did you mean losses?"),
        (
            KINDS["echo"],
            "${one.result.output}",
            "the result of an echo task has no 'output'",
            "did you mean items[0].output?",
        ),
        (KINDS["lora_sft"], "${one.final_model_path}", "one produces final_lora", "write final_lora_path"),
        (KINDS["sft"], "${one.final_lora_archive}", "one produces final_model", "write final_model_archive"),
        (MERGE, "${one.final_lora_path}", "one produces final_model", "write final_model_path"),
        (MERGE, "${one.final_model_archive}", "one creates no archive", "final_model.tar.gz"),
        (f"{BOTH}, merge: {{into: adapter}}", "${one.final_model_path}", "one produces final_lora", "final_lora_path"),
        (MERGE, "${one.gguf.path}", "one has no merge.gguf", "add merge.gguf"),
        (KINDS["inference"], "${one.jsonl_export.path}", "one has no postprocess.jsonl_export", "add postprocess"),
        (
            "taskType: verify, model: {source: {identifier: m}}",
            "${one.final_lora_path}",
            "produces final_model",
            "write",
        ),
        (f"{LORA}, training: {{save_model: false}}", "${one.final_lora_path}", "one saves no model", "save_model"),
    ],
)
def test_what_no_stage_leaves_is_refused_with_its_place(first: str, value: str, message: str, hint: str) -> None:
    said = fault(first, value)
    assert said is not None
    assert message in said[0]
    assert hint in str(said[1])


def test_the_form_of_the_worker_guide_validates() -> None:
    text = document(f"{LORA}, {BY_HTTP}", "x").replace(
        '{taskType: echo, data: {type: list, items: ["x"]}}',
        "{" + LORA + ', checkpoint: {load: {type: http, url: "${one.final_lora_archive}"}}}',
    )
    assert parse_workflow(text).tasks[1].depends_on == ("one",)


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {kind: text for names, text in zip(parts[::2], parts[1::2], strict=True) for kind in names.split(", ")}


@pytest.mark.parametrize("kind", RESULT_KEYS)
def test_the_keys_are_those_of_the_page_of_results(kind: str) -> None:
    rows = [line.split("|")[1] for line in sections()[kind].splitlines() if line.startswith("| `")]
    tables = {
        *("passed", "relative_error", "tolerance", "adapter_effect", "telling", "positions"),  # of `verification`
        *(
            "summary",
            "prompts",
            "tokens",
            "same_tokenization",
            "same_prompts",
            "same_tokens",
            "differences",
        ),  # of `gguf`
    }
    listed = {name for row in rows for name in re.findall(r"`([a-z_]+)(?:\[\]|\.\w+)?`", row)}
    listed -= {
        *TASK_KINDS,
        *(tables if kind == "merge" else ()),
        "largest_error",
        "compared_in",
        "exact_match",
        "lm_eval",
        "suite",
    }
    listed -= {"sft", "lora_sft", "lora", "loss"} - RESULT_KEYS[kind]
    assert {name for name in listed if not name.startswith(("final_", "…"))} <= RESULT_KEYS[kind] | {"into", "passed"}
    unlisted = {key for key in RESULT_KEYS[kind] if f"`{key}" not in sections()[kind] and not key.startswith("final_")}
    assert not unlisted


LOADS = "taskType: lora_sft, model: {source: {identifier: m}}, data: {prompts: [a]}, checkpoint: {load: {LOAD}}"
ADAPTS = "taskType: inference, model: {source: {identifier: m}, adapters: [{LOAD}]}, data: {type: list, items: [a]}"


def second(first: str, task: str) -> list[str]:
    """Return what is said of the second of two stages."""
    text = document(first, "x").replace('taskType: echo, data: {type: list, items: ["x"]}', task)
    try:
        parse_workflow(text)
    except SpecError as error:
        return [each.message for each in error.faults]
    return []


@pytest.mark.parametrize(
    ("task", "load", "said"),
    [
        (LOADS, "url: '${one.final_lora_archive}'", None),
        (LOADS, "url: '${one.final_lora_archive_url}'", None),
        (LOADS, "url: 'https://host/${one.task_id}.tar.gz'", None),
        (LOADS, "url: '${one.final_lora_path}'", "is not a URL"),
        (LOADS, "url: '${one.task_id}'", "is not a URL"),
        (LOADS, "url: '${one.final_lora_archive_bytes}'", "is not a URL"),
        (LOADS, "url: '${one.final_lora_archive_path}'", "is not a URL"),
        (LOADS, "url: 'x${one.final_lora_archive}'", "x${one.final_lora_archive} is not a URL"),
        (LOADS, "taskId: '${one.task_id}'", None),
        (LOADS, "taskId: '${one.final_lora_path}'", "is not a task id"),
        (LOADS, "path: '${one.final_lora_path}'", None),
        (LOADS, "path: '${one.final_lora_archive}'", "is not a path"),
        (LOADS, "path: '${one.task_id}'", "is not a path"),
        (ADAPTS, "url: '${one.final_lora_archive}'", None),
        (ADAPTS, "url: '${one.final_lora_path}'", "is not a URL"),
        (ADAPTS, "taskId: '${one.final_lora_archive}'", "is not a task id"),
        (ADAPTS, "path: '${one.final_lora_archive_bytes}'", "is not a path"),
    ],
)
def test_a_value_that_its_key_does_not_take_is_refused(task: str, load: str, said: str | None) -> None:
    found = second(f"{LORA}, {PACKED}", task.replace("LOAD", load))
    assert (said in found[0]) if said else not found, found


MODEL = "model: {source: {identifier: m}}"
TRAINS = f"taskType: sft, {MODEL}"


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (f"{TRAINS}, data: {{prompts: [a]}}, training: {{num_train_epochs: '${{one.losses}}'}}", "must be a number"),
        (f"{TRAINS}, data: {{prompts: [a]}}, training: {{learning_rate: '${{one.model_name}}'}}", "must be a number"),
        (f"{TRAINS}, data: {{prompts: [a]}}, training: {{num_train_epochs: '${{one.dataset_size}}'}}", None),
        (f"{TRAINS}, data: {{prompts: [a]}}, training: {{learning_rate: '${{one.losses.train_last}}'}}", None),
        (f"{TRAINS}, data: {{prompts: [a]}}, training: {{learning_rate: '1e-${{one.dataset_size}}'}}", None),
        (f"{TRAINS}, data: {{jsonl: {{url: '${{one.model_name}}'}}}}", "must be a URL"),
        (f"{TRAINS}, data: {{jsonl: {{url: '${{one.dataset_size}}'}}}}", "must be a string"),
        (f"{TRAINS}, data: {{jsonl: {{url: '${{one.final_lora_archive}}'}}}}", None),
        (f"{TRAINS}, data: {{path: '${{one.dataset_size}}'}}", "must be a string"),
        (f"{TRAINS}, data: {{path: '${{one.final_lora_archive}}'}}", "is not a path"),
        (f"{TRAINS}, data: {{path: '${{one.output_dir}}'}}", None),
        ("taskType: sft, model: {source: {identifier: '${one.task_id}'}}, data: {prompts: [a]}", "is not a path"),
        ("taskType: sft, model: {source: {identifier: '${one.model_name}'}}, data: {prompts: [a]}", None),
        (
            f"taskType: ppo, {MODEL}, data: {{prompts: [a]}}, reward_model: {{taskId: '${{one.losses}}'}}",
            "is not a task id",
        ),
        ("taskType: api, api: {url: '${one.model_name}', method: GET}", "must be a URL"),
        ("taskType: echo, data: {type: list, items: ['${one.losses}', '${one.dataset_size}']}", None),
    ],
)
def test_a_value_of_another_type_is_refused(task: str, said: str | None) -> None:
    found = second(f"{LORA}, {PACKED}", task)
    assert (said in found[0]) if said else not found, found


@pytest.mark.parametrize("task", [LOADS, ADAPTS])
def test_a_task_that_leaves_no_model_is_not_loaded(task: str) -> None:
    (said,) = second(KINDS["echo"], task.replace("LOAD", "taskId: '${one.task_id}'"))
    assert "produces no model" in said or "has no" in said


@pytest.mark.parametrize(
    ("kind", "key", "said"),
    [
        ("lora_sft", "loss", "has no 'loss'"),
        ("lora_sft", "losses.after", "losses of a lora_sft task has no 'after'"),
        ("lora_sft", "losses.held_out_after", None),
        ("inference", "items[0].outptu", "has no 'outptu'"),
        ("inference", "items[0].metadata.anything", None),
        ("inference", "items.output", None),
        ("inference", "usage.foo", "usage of an inference task has no 'foo'"),
        ("inference", "count.x", "count is a single value"),
    ],
)
def test_a_condition_that_can_never_be_judged_is_refused(kind: str, key: str, said: str | None) -> None:
    one, two = KINDS[kind], KINDS["echo"]
    for task in (
        f"{two}, condition: {{node: one, field: '{key}', equals: 1}}",
        two.replace("[a]", f"['${{one.{key}}}']"),
    ):
        found = second(one, task)
        assert (said in found[0]) if said else not found, found
