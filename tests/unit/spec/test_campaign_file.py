"""The scheduler's `config.yaml`: what it says, and every fault at once with its line."""

from __future__ import annotations

import pytest

from tunefleet.errors import SpecError
from tunefleet.spec.documents.campaign_document import CampaignSpec
from tunefleet.spec.documents.campaign_file import dump_campaign_spec, load_campaign_spec, parse_campaigns

DOCUMENT = """\
name-of-the-task:
  # If enabled is false, the task will not be run
  enabled: true
  wandb_project: "wandb-project-name"
  run_intervals:
    min_days: 0
    max_days: 0
    min_hours: 0
    max_hours: 0
  datasets:
    - name: "yahma/alpaca-cleaned"
      field_instruction: "instruction"
      field_input: "input"
      field_output: "output"
    - name: "databricks/databricks-dolly-15k"
      field_instruction: "instruction"
      field_input: "" # may be left empty
      field_output: "response"
  model_repo: "unsloth/Meta-Llama-3.1-8B"
  # tokenizer_id:
  hours_to_complete: 8
  samples_per_training: 150_000
  final_test_size: 0.05
  random_seed: 45
"""
SMALL = """\
{name}:
  model_repo: builtin:gsm8k-llama-2m
  datasets:
    - path: builtin:gsm8k
      field_instruction: question
      field_output: answer
"""


def small(more: str = "", name: str = "one") -> str:
    return SMALL.format(name=name) + more


def faults(text: str) -> list[tuple[str, int]]:
    with pytest.raises(SpecError) as caught:
        parse_campaigns(text, filename="config.yaml")
    return [(fault.path, fault.line) for fault in caught.value.faults]


def test_the_documents_file_is_read_as_it_is() -> None:
    spec = parse_campaigns(DOCUMENT)["name-of-the-task"]
    assert spec.enabled
    assert spec.samples_per_training == 150_000
    assert spec.random_seed == 45
    assert spec.datasets[1].field_input is None
    assert spec.datasets[1].field_output == "response"
    assert (spec.task_type, spec.provider, spec.hours_to_complete) == ("InstructText", None, 8.0)


def test_the_documents_defaults() -> None:
    spec = parse_campaigns(small())["one"]
    assert not spec.enabled
    assert spec.run_intervals is None
    assert (spec.samples_per_training, spec.final_test_size, spec.random_seed) == (150_000, 0.05, 42)
    assert (spec.hours_to_complete, spec.chat_template) == (8, "chatml")


def test_every_fault_of_every_campaign_is_told_with_its_line() -> None:
    text = small("  enabeld: true\n  gate: {min_gian: 1}\n", "a") + small("  samples_per_training: many\n", "b")
    assert faults(text) == [("a.enabeld", 7), ("a.gate.min_gian", 8), ("b.samples_per_training", 15)]
    with pytest.raises(SpecError, match="did you mean enabled"):
        parse_campaigns(text)


def test_what_contradicts_itself_is_told_beside_all_else_with_its_line() -> None:
    text = """one:
  enabeld: true
  model_repo: builtin:gsm8k-lama-2m
  samples_per_training: many
  run_intervals:
    min_hours: 8
    max_hours: 6
    min_days: 2
    max_days: soon
    max_day: 3
  datasets:
    - {name: a/b, field_instruction: q}
    - {path: c, s3: "s3://bucket/key", max_rows: 0, field_output: a}
  budget: {max_cost: 5}
two:
  run_intervals: {min_days: 3, max_days: 1}
  datasets: []
  lora: {r: 8}
  provider: gradients
three: {model_repo: m, task_type: Chats, datasets: [{name: a/b}], run_intervals: {min_hours: 2}}
"""
    assert faults(text) == [
        ("one.enabeld", 2),
        ("one.model_repo", 3),
        ("one.samples_per_training", 4),
        ("one.run_intervals.max_days", 9),
        ("one.run_intervals.max_day", 10),
        ("one.datasets.0.field_output", 12),
        ("one.datasets.1.max_rows", 13),
        ("one.budget.max_cost", 14),
        ("two.model_repo", 15),
        ("two.run_intervals.min_days", 16),
        ("two.datasets", 17),
        ("three.task_type", 20),
        ("three.run_intervals.min_hours", 20),
    ]


@pytest.mark.parametrize(
    ("more", "blamed"),
    [
        ("  run_intervals: {min_hours: 8, max_hours: 6}\n", "one.run_intervals.min_hours"),
        ("  run_intervals: {min_days: 1}\n", "one.run_intervals.min_days"),
        ("  final_test_size: 0\n", "one.final_test_size"),
        ("  task_type: Chat\n", "one.datasets.0.field_instruction"),
        ("  chat_template: chatml\n", "one.chat_template"),
        ("  provider: gradients\n  lora: {r: 8}\n", "one.lora"),
        ("  budget: {max_cost: 5}\n", "one.budget.max_cost"),
        ("  dedupe: {rows: exact, threshold: 0.5}\n", "one.dedupe.threshold"),
        ("  training: {resume_from_path: ./x}\n", "one.training.resume_from_path"),
    ],
)
def test_what_contradicts_itself_is_refused(more: str, blamed: str) -> None:
    assert blamed in [path for path, _ in faults(small(more))]


OWN = """\
  evaluate:
    evaluations:
      - {type: suite, name: own, data: {artifact: art-1, prompt_column: q, response_column: a}, scorers: [{type: f1}]}
      - {type: lm_eval, name: harness, tasks: [arc_easy]}
"""


def test_a_gate_is_one_condition_or_several() -> None:
    spec = parse_campaigns(small(OWN + "  gate: [{metric: loss}, {metric: own_f1, max_drop: 0.01}]\n"))["one"]
    assert [(each.metric, each.max_drop) for each in spec.gate] == [("loss", None), ("own_f1", 0.01)]
    assert load_campaign_spec(dump_campaign_spec(spec)) == spec
    single = parse_campaigns(small("  gate: {metric: accuracy, min_gain: 0.1}\n"))["one"]
    assert (single.gate[0].metric, single.gate[0].min_gain) == ("accuracy", 0.1)
    assert load_campaign_spec(dump_campaign_spec(single)) == single


@pytest.mark.parametrize(
    ("more", "blamed"),
    [
        ("  gate: {metric: own_f1}\n", ("one.gate.metric", 7)),
        (OWN + "  gate: [{metric: own_f1}, {metric: perplexity}]\n", ("one.gate.1.metric", 11)),
        (OWN + "  gate: [{metric: loss}, {metric: harness_acc, max_drop: -1}]\n", ("one.gate.1.max_drop", 11)),
        ("  gate: [{metric: loss}, {metric: loss, max_drop: 1}]\n", ("one.gate.1.metric", 7)),
        ("  gate: {max_drop: 0.1, min_gain: 0.1}\n", ("one.gate.max_drop", 7)),
        ("  gate: [{}, {metric: accuracy, confidence: 0.9}]\n", ("one.gate.1.confidence", 7)),
        ("  gate: []\n", ("one.gate", 7)),
        (OWN.replace("artifact: art-1", "path: ./own.jsonl"), ("one.evaluate.evaluations.0.data.path", 9)),
        (OWN.replace("name: harness, ", ""), ("one.evaluate.evaluations.1", 10)),
        (OWN.replace("name: own", "name: loss"), ("one.evaluate.evaluations.0.name", 9)),
    ],
)
def test_a_gate_names_what_is_measured(more: str, blamed: tuple[str, int]) -> None:
    assert faults(small(more)) == [blamed]


def test_a_campaign_that_is_not_enabled_is_checked_too() -> None:
    assert faults(small("  enabled: false\n  model_rep: x\n")) == [("one.model_rep", 8)]


def test_a_dataset_names_one_place() -> None:
    text = "one: {model_repo: m, datasets: [{name: a/b, path: c, field_instruction: q, field_output: r}]}"
    assert [path for path, _ in faults(text)] == ["one.datasets.0.path"]


@pytest.mark.parametrize("text", ["", "[]", "1", "a b: {}"])
def test_no_campaign_or_no_name(text: str) -> None:
    assert faults(text)


def test_a_stored_spec_is_read_back() -> None:
    spec = parse_campaigns(DOCUMENT)["name-of-the-task"]
    assert load_campaign_spec(dump_campaign_spec(spec)) == spec
    chat = parse_campaigns("c: {task_type: Chat, model_repo: m, datasets: [{name: a/b, chat_column: turns}]}")["c"]
    assert isinstance(chat, CampaignSpec)
    assert load_campaign_spec(dump_campaign_spec(chat)) == chat
