"""Good documents: what is read from them, and that they survive the store."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.spec.documents import ECHO, EVERYTHING, SMALLEST, training
from tunefleet.errors import SpecError
from tunefleet.lifecycle.task import OUTCOMES, RetryBudget
from tunefleet.spec import (
    EchoSpec,
    LoraSftSpec,
    RetrySpec,
    SftSpec,
    TextShape,
    dump_task_spec,
    load_task_spec,
    parse_workflow,
)


def parse_one(text: str) -> SftSpec | LoraSftSpec | EchoSpec:
    return parse_workflow(text).tasks[0].spec


def parse_training(**blocks: str) -> SftSpec | LoraSftSpec:
    spec = parse_one(training(**blocks))
    assert isinstance(spec, SftSpec | LoraSftSpec)
    return spec


def test_the_smallest_document() -> None:
    workflow = parse_workflow(SMALLEST)
    assert (workflow.name, workflow.owner, workflow.description, workflow.kind) == ("task", None, None, None)
    (task,) = workflow.tasks
    assert (task.name, task.depends_on) == ("task", ())
    assert isinstance(task.spec, LoraSftSpec)
    assert task.spec.training.learning_rate == 2e-4
    assert not task.spec.training.gradient_checkpointing
    assert task.spec.lora.target_modules == ("q_proj", "k_proj", "v_proj", "o_proj")
    assert task.spec.attention is None
    assert task.spec.quantized is None
    assert not task.spec.requires_code


def test_defaults_of_a_full_training() -> None:
    spec = parse_training()
    assert spec.training.learning_rate == 5e-5
    assert spec.training.gradient_checkpointing
    assert spec.quantized is None


def test_everything_that_can_be_said() -> None:
    workflow = parse_workflow(EVERYTHING)
    assert (workflow.api_version, workflow.kind, workflow.owner) == ("flowmesh/v1", "LoRASFTTask", "ann")
    assert workflow.description == "All keys of a LoRA training."
    spec = workflow.tasks[0].spec
    assert isinstance(spec, LoraSftSpec)
    assert spec.resources.hardware.cpu == 8
    assert spec.resources.hardware.memory_bytes == 32 << 30
    assert spec.resources.hardware.gpu is not None
    assert spec.resources.hardware.gpu.memory_bytes == 79 << 29
    assert spec.training.learning_rate == 5e-7
    assert spec.training.report_to == ("tensorboard",)
    assert spec.model.transformers.dtype == "bfloat16"
    assert spec.attention == "flash_attention_2"
    assert spec.quantized == spec.quantization
    assert spec.requires_code
    assert spec.output.wants_archive("final_lora")
    assert spec.retry.on == ("network", "crashed")
    assert spec.data.shape == TextShape("pair", prompt="question", response="answer", separator="\n")


def test_which_layers_get_an_adapter() -> None:
    for written, read in (("all-linear", "all-linear"), ("q_proj", ("q_proj",)), ("[a, b]", ("a", "b"))):
        spec = parse_one(training(taskType="lora_sft", lora=f"{{target_modules: {written}}}"))
        assert isinstance(spec, LoraSftSpec)
        assert spec.lora.target_modules == read


def test_an_echo() -> None:
    spec = parse_one(ECHO)
    assert isinstance(spec, EchoSpec)
    assert spec.data.items == ("one", "two")
    assert not spec.requires_code


@pytest.mark.parametrize("version", ["mloc/v1", "flowmesh/v1", "tunefleet/v1"])
def test_one_schema_for_three_versions(version: str) -> None:
    assert parse_workflow(SMALLEST.replace("tunefleet/v1", version)).api_version == version


@pytest.mark.parametrize("text", [SMALLEST, EVERYTHING, ECHO, training()])
def test_a_spec_survives_the_store(text: str) -> None:
    spec = parse_one(text)
    stored = json.loads(json.dumps(dump_task_spec(spec)))
    again = load_task_spec(stored)
    assert again == spec
    assert dump_task_spec(again) == stored


def test_only_what_was_given_is_stored() -> None:
    stored = dump_task_spec(parse_one(SMALLEST))
    assert stored == {
        "taskType": "lora_sft",
        "model": {"source": {"identifier": "some/model"}},
        "data": {"path": "./rows.jsonl"},
    }
    built = EchoSpec()
    assert load_task_spec(dump_task_spec(built)) == built


def test_a_stored_spec_is_checked_again() -> None:
    with pytest.raises(SpecError, match=r"spec\.training\.learnin_rate.*did you mean learning_rate"):
        load_task_spec({**dump_task_spec(parse_one(SMALLEST)), "training": {"learnin_rate": 1}})


def test_json_is_a_document_too() -> None:
    document = {"apiVersion": "tunefleet/v1", "spec": {"taskType": "echo", "data": {"items": ["a\tb"]}}}
    spec = parse_one(json.dumps(document, indent="\t"))
    assert isinstance(spec, EchoSpec)
    assert spec.data.items == ("a\tb",)


def test_a_key_without_a_value_is_not_given() -> None:
    spec = parse_training(training="", output="{destination: }", checkpoint="null")
    assert spec.training.batch_size == 2
    assert spec.checkpoint.load is None
    assert "training" not in dump_task_spec(spec)


def test_frozen() -> None:
    spec = parse_one(SMALLEST)
    with pytest.raises(ValueError, match="frozen"):
        spec.priority = 3


@pytest.mark.parametrize(
    ("data", "kind", "pointer"),
    [
        ("{dataset_name: a/b}", "hub", "data.dataset_name"),
        ("{path: a.csv}", "file", "data.path"),
        ("{jsonl_path: a.jsonl}", "file", "data.jsonl_path"),
        ("{jsonl: {path: a.jsonl}}", "file", "data.jsonl.path"),
        ("{jsonl: {worker_path: /a.jsonl}}", "worker_file", "data.jsonl.worker_path"),
        ("{artifact: rows}", "artifact", "data.artifact"),
        ("{prompts: [a, b]}", "inline", "data.prompts"),
        ("{path: 'https://x/rows.jsonl'}", "url", "data.path"),
        ("{jsonl: {path: 'a.jsonl', url: 'https://x/rows.jsonl'}}", "url", "data.jsonl.url"),
    ],
)
def test_where_rows_come_from(data: str, kind: str, pointer: str) -> None:
    source = parse_training(data=data).data.source
    assert (source.kind, source.pointer) == (kind, pointer)


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        ("{path: a}", TextShape("auto")),
        ("{path: a, separator: ' '}", TextShape("auto", separator=" ")),
        ("{path: a, text_field: body}", TextShape("text", text="body")),
        ("{prompts: [a]}", TextShape("text")),
        ("{path: a, messages_field: chat}", TextShape("messages", messages="chat")),
        ("{path: a, prompt_field: q, response_field: a}", TextShape("pair", prompt="q", response="a")),
        (
            "{jsonl: {path: a, prompt_field: q, response_field: a, separator: ': '}, separator: x}",
            TextShape("pair", prompt="q", response="a", separator=": "),
        ),
        ("{jsonl: {path: a, text_field: t}}", TextShape("text", text="t")),
    ],
)
def test_how_rows_become_text(data: str, shape: TextShape) -> None:
    assert parse_training(data=data).data.shape == shape


@pytest.mark.parametrize(
    ("loading", "block", "bits"),
    [
        ("{load_in_4bit: true}", "null", (True, False)),
        ("{load_in_8bit: true}", "null", (False, True)),
        ("{load_in_4bit: true}", "{quant_type: fp4}", (True, False)),
        ("{}", "{load_in_8bit: true}", (False, True)),
        ("{load_in_4bit: true}", "{load_in_4bit: true}", (True, False)),
    ],
)
def test_quantisation_may_be_written_in_two_places(loading: str, block: str, bits: tuple[bool, bool]) -> None:
    model = f"{{source: {{identifier: x}}, transformers: {loading}}}"
    quantized = parse_training(taskType="lora_sft", model=model, quantization=block).quantized
    assert quantized is not None
    assert (quantized.load_in_4bit, quantized.load_in_8bit) == bits
    assert quantized.quant_type == ("fp4" if "fp4" in block else "nf4")


def test_a_quantisation_that_is_off() -> None:
    assert parse_training(taskType="lora_sft", quantization="{load_in_4bit: false}").quantized is None


def test_attention_may_be_written_in_two_places() -> None:
    assert parse_training(training="{attn_implementation: eager}").attention == "eager"
    model = "{source: {identifier: x}, transformers: {attn_implementation: sdpa}}"
    assert parse_training(model=model).attention == "sdpa"


def test_archives_are_made_only_where_asked_for() -> None:
    assert not parse_training().output.wants_archive("final_model")
    output = parse_training(output="{artifacts: [final_model.tar.gz]}").output
    assert output.wants_archive("final_model")
    assert not output.wants_archive("final_lora")


def test_retries_are_for_the_reasons_that_are_charged_to_attempts() -> None:
    charged = {reason.value for reason, outcome in OUTCOMES.items() if outcome.budget is RetryBudget.ATTEMPTS}
    assert set(RetrySpec().on) == charged


def test_yaml_words_are_those_of_version_1_2() -> None:
    spec = parse_training(
        training="{save_strategy: no, eval_strategy: no, learning_rate: 5E-7, packing: yes, seed: 0x10}",
        retry="{on: [network]}",
        data="{path: a, revision: null, text_field: 'on'}",
    )
    assert spec.training.save_strategy == "no"
    assert spec.training.learning_rate == 5e-7
    assert spec.training.packing
    assert spec.training.seed == 16
    assert spec.retry.on == ("network",)


def test_a_date_is_a_text() -> None:
    model = "{source: {identifier: x, revision: 2024-01-01}}"
    assert parse_training(model=model).model.source.revision == "2024-01-01"


def test_anchors_and_merges() -> None:
    text = """
apiVersion: tunefleet/v1
spec:
  taskType: sft
  model: {source: &source {identifier: x, revision: a}}
  data: &data {path: rows.jsonl, max_samples: 5}
  checkpoint: {load: {path: &path logs}}
  training: {<<: [{batch_size: 4, seed: 1}, {seed: 2}], seed: 3}
  output: {artifacts: [*path]}
"""
    spec = parse_one(text)
    assert isinstance(spec, SftSpec)
    assert (spec.training.batch_size, spec.training.seed) == (4, 3)
    assert spec.output.artifacts == ("logs",)


@given(st.text(max_size=300))
def test_no_text_is_a_traceback(text: str) -> None:
    with pytest.raises(SpecError):
        parse_workflow(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
KEYS = ["model", "data", "training", "lora", "resources", "retry", "output", "checkpoint", "evaluate", "limits", "x"]


@given(st.sampled_from(["sft", "lora_sft", "echo"]), st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4))
def test_no_stored_data_is_a_traceback(kind: str, blocks: dict[str, object]) -> None:
    try:
        spec = load_task_spec({"taskType": kind, **blocks})
    except SpecError:
        return
    assert load_task_spec(dump_task_spec(spec)) == spec


def test_a_stored_fault_is_told_once() -> None:
    data = {**dump_task_spec(parse_one(SMALLEST)), "evaluate": {"answers": 1}}
    with pytest.raises(SpecError) as caught:
        load_task_spec(data)
    assert [(fault.path, fault.line) for fault in caught.value.faults] == [("spec.evaluate.answers", 0)]
