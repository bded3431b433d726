"""Wrong documents: each fault has its place, one sentence, and the way out; all come at once."""

from __future__ import annotations

import json

import pytest

from tests.unit.spec.documents import SMALLEST, training
from tunefleet.errors import Fault, SpecError
from tunefleet.spec import TASK_KINDS, dump_task_spec, load_task_spec, parse_workflow
from tunefleet.spec.file_decoder import decode_file


def faults(text: str) -> list[Fault]:
    with pytest.raises(SpecError) as caught:
        parse_workflow(text, filename="w.yaml")
    assert str(caught.value).startswith("w.yaml has ")
    return list(caught.value.faults)


def only_fault(text: str) -> Fault:
    found = faults(text)
    assert len(found) == 1, [str(fault) for fault in found]
    return found[0]


ALL_WRONG = """\
apiVersion: tunefleet/v2
metadata: {nam: demo}
spec:
  taskType: lora_sft
  learning_rate: 1
  stages: []
  model:
    source: {identifer: x, revision: 1}
  data:
    path: a
    prompts: [x]
  resources:
    hardware: {memory: 12 apples, cpu: 8c, gpu: {count: -4}}
  lora: {r: 0, target_modules: 7}
  training: {learnin_rate: 3e-3, batch_size: 2.5, epochs: 3}
  evaluate: {answers: 2}
"""


def test_all_faults_at_once_in_the_order_of_the_text() -> None:
    assert [(fault.line, fault.column, fault.path, fault.hint) for fault in faults(ALL_WRONG)] == [
        (1, 13, "apiVersion", "did you mean tunefleet/v1?"),
        (2, 12, "metadata.nam", "did you mean name?"),
        (5, 3, "spec.learning_rate", "it belongs to spec.training.learning_rate"),
        (6, 11, "spec.stages", "add one, or remove the key"),
        (8, 14, "spec.model.source.identifer", "did you mean identifier?"),
        (8, 38, "spec.model.source.revision", "write it in quotes"),
        (
            11,
            14,
            "spec.data.prompts",
            "set exactly one of dataset_name, path, artifact, jsonl, jsonl_path, prompts",
        ),
        (13, 24, "spec.resources.hardware.memory", "write for example 32Gi, 1.5Gi or 512M; all units are binary"),
        (13, 40, "spec.resources.hardware.cpu", "write a whole number of logical cores, such as 8"),
        (13, 57, "spec.resources.hardware.gpu.count", None),
        (14, 13, "spec.lora.r", None),
        (14, 32, "spec.lora.target_modules", "for example [q_proj, v_proj]"),
        (15, 14, "spec.training.learnin_rate", "did you mean learning_rate?"),
        (15, 46, "spec.training.batch_size", None),
        (15, 51, "spec.training.epochs", "did you mean num_train_epochs?"),
    ]


@pytest.mark.parametrize(
    ("block", "text", "path", "message"),
    [
        ("training", "{batch_size: many}", "training.batch_size", "must be an integer, not 'many'"),
        ("training", "{batch_size: 0}", "training.batch_size", "must be at least 1, not 0"),
        ("training", "{batch_size: true}", "training.batch_size", "must be a number, not true"),
        ("training", "{learning_rate: -1}", "training.learning_rate", "must be greater than 0, not -1"),
        ("training", "{learning_rate: .inf}", "training.learning_rate", "must be a finite number, not inf"),
        ("training", "{warmup_ratio: 1.5}", "training.warmup_ratio", "must be less than 1, not 1.5"),
        ("training", "{packing: perhaps}", "training.packing", "must be true or false, not 'perhaps'"),
        ("training", "[1]", "training", "must be a mapping, not a list"),
        ("training", "{early_stopping: 3}", "training.early_stopping", "must be a mapping, not 3"),
        ("training", "{nproc_per_node: 2}", "training.nproc_per_node", "needs the devices of its processes"),
        ("training", "{parallelism: fsdp}", "training.parallelism", "fsdp needs several processes, but there is one"),
        ("resources", "{processes: 2}", "resources.processes", "needs the devices of its processes"),
        (
            "resources",
            "{processes: 2, hardware: {gpu: {count: 3}}}",
            "resources.processes",
            "must equal the number of GPUs, which is 3",
        ),
        ("training", "{deepspeed: {}}", "training.deepspeed", "is empty"),
        ("training", "{visible_devices: all}", "training.visible_devices", "must be a list of device indices"),
        ("training", "{bf16: true, fp16: true}", "training.fp16", "cannot be set together with bf16"),
        ("training", "{warmup_steps: 1, warmup_ratio: 0.1}", "training.warmup_ratio", "together with warmup_steps"),
        ("training", "{eval_steps: 5}", "training.eval_steps", "has no effect without eval_strategy: steps"),
        ("training", "{early_stopping: {}}", "training.early_stopping", "requires evaluations during training"),
        ("training", "{eval_strategy: epoch}", "training.eval_strategy", "requires an eval set"),
        ("training", "{report_to: [wand]}", "training.report_to.0", "must be one of tensorboard"),
        ("training", "{report_to: 3}", "training.report_to", "must be a list, not 3"),
        ("data", "{}", "data", "has no data source"),
        ("data", "{path: ' '}", "data.path", "string of one line"),
        ("data", '{path: "a\\nb"}', "data.path", "string of one line"),
        ("data", "{path: '${prepare.result.path}'}", "data.path", "no task of this workflow"),
        ("data", "{path: ''}", "data.path", "must not be empty"),
        ("data", "{path: 'ftp://x/y'}", "data.path", "ftp:// is not supported"),
        ("data", "{jsonl: {url: x, path: y}}", "data.jsonl.url", "starts with http:// or https://"),
        ("data", "{jsonl: {}}", "data.jsonl", "specifies no file"),
        ("data", "{path: x, eval: {}}", "data.eval", "needs exactly one of split, path and fraction"),
        ("data", "{path: x, eval: {fraction: 1}}", "data.eval.fraction", "must be less than 1"),
        ("data", "{path: x, config_name: y}", "data.config_name", "is only for dataset_name"),
        ("data", "{path: x, prompt_column: q}", "data.prompt_column", "also needs response_column"),
        ("data", "{path: x, response_field: q}", "data.response_field", "also needs prompt_column"),
        ("data", "{jsonl: {path: x, prompt_field: q}}", "data.jsonl.prompt_field", "needs response_column"),
        ("data", "{path: x, text_field: t, messages_field: m}", "data.messages_field", "conflicts with another key"),
        (
            "data",
            "{path: x, text_field: t, prompt_column: q, response_column: a}",
            "data.text_field",
            "conflicts with another key that defines how a row becomes text",
        ),
        (
            "data",
            "{path: x, prompt_column: q, prompt_field: q, response_column: a}",
            "data.prompt_field",
            "is an alias of",
        ),
        ("data", "{prompts: []}", "data.prompts", "must have at least 1 entry"),
        ("data", "{prompts: text}", "data.prompts", "must be a list, not 'text'"),
        ("data", "{prompts: [a], eval: {split: test}}", "data.eval.split", "inline prompts have no splits"),
        (
            "data",
            "{dataset_name: a, trust_remote_code: true}",
            "data.trust_remote_code",
            "datasets with custom code cannot be loaded",
        ),
        ("model", "{source: {}}", "model.source.identifier", "is required"),
        (
            "model",
            "{source: {identifier: x}, vllm: {}}",
            "model.vllm",
            "is only for inference, chat, serve, embedding and evaluate tasks",
        ),
        (
            "model",
            "{source: {identifier: x}, transformers: {load_in_4bit: true}}",
            "model.transformers.load_in_4bit",
            "quantized weights cannot be fully fine-tuned",
        ),
        (
            "model",
            "{source: {identifier: x}, transformers: {use_flash_attention_2: true, attn_implementation: sdpa}}",
            "model.transformers.attn_implementation",
            "contradicts use_flash_attention_2",
        ),
        (
            "model",
            "{source: {identifier: x}, transformers: {device_map: cpu}}",
            "model.transformers.device_map",
            "the worker selects the device of a training task",
        ),
        ("lora", "{r: 8}", "lora", "is only for lora_sft, dpo, kto"),
        ("resources", "{replicas: 2}", "resources.replicas", "sft tasks have no items to split"),
        ("resources", "{nodes: 0}", "resources.nodes", "is out of range"),
        ("resources", "{nodes: '4:2'}", "resources.nodes", "is out of range"),
        ("resources", "{nodes: many}", "resources.nodes", "is not a number of nodes"),
        (
            "output",
            "{destination: {type: ftp}}",
            "output.destination.type",
            "must be one of local, http, s3, not 'ftp'",
        ),
        ("output", "{destination: {url: 'http://x'}}", "output.destination.url", "has no effect with type: local"),
        ("output", "{artifacts: [../x]}", "output.artifacts.0", "must be a relative path"),
        ("checkpoint", "{load: {type: http}}", "checkpoint.load", "specifies no weights to load"),
        ("checkpoint", "{load: {taskId: x, task_id: y}}", "checkpoint.load.task_id", "is an alias of taskId"),
        ("checkpoint", "{load: {path: x, subdir: /y}}", "checkpoint.load.subdir", "must be a relative path"),
        ("retry", "{on: [bad_input]}", "retry.on.0", "must be one of bug"),
        ("retry", "{max_attempts: 101}", "retry.max_attempts", "must be at most 100"),
        ("evaluate", "{answers: 2}", "evaluate.answers", "requires an eval set"),
        ("evaluate", "{exact_match: {}}", "evaluate.exact_match", "requires an eval set"),
        ("condition", "{node: a, field: x, equals: 1}", "condition.node", "is not a task of this workflow"),
        ("priority", "high", "priority", "must be an integer, not 'high'"),
        ("on_lost", "retry", "on_lost", "must be one of replace, wait, not 'retry'"),
    ],
)
def test_each_fault(block: str, text: str, path: str, message: str) -> None:
    fault = only_fault(training(**{block: text}))
    assert fault.path == f"spec.{path}"
    assert message in fault.message
    assert fault.line > 1
    assert fault.column > 1


def test_checks_between_blocks_come_with_the_faults_of_a_third_block() -> None:
    text = training(training="{eval_strategy: steps}", resources="{hardware: {memory: x}}")
    assert [fault.path for fault in faults(text)] == ["spec.training.eval_strategy", "spec.resources.hardware.memory"]


def test_quantisation_that_contradicts_itself() -> None:
    model = "{source: {identifier: x}, transformers: {load_in_4bit: true}}"
    text = training(taskType="lora_sft", model=model, quantization="{load_in_8bit: true}")
    assert only_fault(text).message == "contradicts quantization"
    text = training(taskType="lora_sft", quantization="{load_in_4bit: true, load_in_8bit: true}")
    assert only_fault(text).path == "spec.quantization.load_in_8bit"
    model = "{source: {identifier: x}, transformers: {load_in_4bit: true, load_in_8bit: true}}"
    assert [fault.path for fault in faults(training(taskType="lora_sft", model=model))] == [
        "spec.model.transformers.load_in_8bit"
    ]


def test_attention_that_contradicts_itself() -> None:
    model = "{source: {identifier: x}, transformers: {attn_implementation: sdpa}}"
    fault = only_fault(training(model=model, training="{attn_implementation: eager}"))
    assert fault.path == "spec.training.attn_implementation"


def test_a_best_model_needs_checkpoints_at_evaluations() -> None:
    data = "{path: x, eval: {fraction: 0.1}}"
    for block in (
        "{load_best_model_at_end: true, eval_strategy: epoch}",
        "{load_best_model_at_end: true, eval_strategy: steps, eval_steps: 30, save_steps: 100}",
    ):
        fault = only_fault(training(data=data, training=block))
        assert (fault.path, fault.message) == (
            "spec.training.load_best_model_at_end",
            "requires a checkpoint at each evaluation",
        )
    good = "{load_best_model_at_end: true, eval_strategy: steps, eval_steps: 50, save_steps: 100}"
    parse_workflow(training(data=data, training=good))
    parse_workflow(training(data=data, training=good.replace("steps, eval_steps: 50", "epoch, save_strategy: epoch")))


def test_loss_on_responses_needs_responses() -> None:
    fault = only_fault(training(data="{prompts: [a]}", training="{completion_only_loss: true}"))
    assert fault.path == "spec.training.completion_only_loss"


@pytest.mark.parametrize(
    ("kind", "message", "hint"),
    [
        ("lora-sft", "'lora-sft' is not a known task type", "did you mean lora_sft?"),
        ("inferense", "'inferense' is not a known task type", "did you mean inference?"),
        (
            "mystery",
            "'mystery' is not a known task type",
            f"use one of {', '.join(TASK_KINDS)}; or install its plugin, here and on the server",
        ),
        ("7", "7 is not a known task type", f"use one of {', '.join(TASK_KINDS)}"),
        ("null", "is required", f"one of {', '.join(TASK_KINDS)}"),
    ],
)
def test_task_kinds(kind: str, message: str, hint: str) -> None:
    fault = faults(SMALLEST.replace("lora_sft", kind))[0]
    assert (fault.path, fault.message, fault.hint, fault.line) == ("spec.taskType", message, hint, 3)


WRONG_KIND = """\
apiVersion: tunefleet/v1
spec:
  model: {source: {identifier: m}}
  stages:
    - {name: a, spec: {taskType: lora-sft, data: {path: a.jsonl}, lora: {alpa: 8}, training: {batch_siz: 1}}}
    - {name: b, spec: {taskType: sft, data: {path: b.jsonl}, training: {lr: 1}}}
    - {name: c, spec: {taskType: mystery, data: {any: 1}, priority: high, limts: {}, whatever: 1}}
"""


def test_duplicate_keys_and_tags_come_with_all_other_errors() -> None:
    text = training(
        training="{batch_size: 1, batch_size: 2, lr: 1}", priority="!mine 3", retry="{max_attempts: " + "9" * 30 + "}"
    )
    found = [(fault.path, fault.message.partition(";")[0]) for fault in faults(text)]
    assert sorted(found) == [
        ("spec.priority", "has the tag !mine, which is not supported"),
        ("spec.retry.max_attempts", "is too large: integers have 64 bits"),
        ("spec.training.batch_size", "is a duplicate key"),
        ("spec.training.lr", "is not a known key"),
    ]


def test_a_wrong_task_type_does_not_hide_other_errors() -> None:
    assert [(fault.line, fault.path, fault.hint) for fault in faults(WRONG_KIND) if "taskType" not in fault.path] == [
        (5, "spec.stages.0.spec.lora.alpa", "did you mean alpha?"),
        (5, "spec.stages.0.spec.training.batch_siz", "did you mean batch_size?"),
        (6, "spec.stages.1.spec.training.lr", "did you mean learning_rate?"),
        (7, "spec.stages.2.spec.priority", None),
        (7, "spec.stages.2.spec.limts", "did you mean limits?"),
        (7, "spec.stages.2.spec.whatever", None),
    ]


def test_a_missing_task_type_does_not_hide_other_errors() -> None:
    found = faults(SMALLEST.replace("  taskType: lora_sft\n", "  retry: {max_attempt: 2}\n"))
    assert [fault.path for fault in found] == ["spec.taskType", "spec.retry.max_attempt"]


def test_a_misspelt_task_type() -> None:
    fault = only_fault(SMALLEST.replace("taskType", "task_type"))
    assert (fault.path, fault.line, fault.message) == ("spec.task_type", 3, "is not a known key")
    assert fault.hint == "did you mean taskType?"


def test_a_model_that_is_not_saved_cannot_be_delivered() -> None:
    fault = only_fault(training(output="{artifacts: [logs, final_model]}", training="{save_model: false}"))
    assert (fault.path, fault.hint) == ("spec.output.artifacts.1", "remove one of them")


def test_an_echo_takes_a_list() -> None:
    text = "apiVersion: tunefleet/v1\nspec:\n  taskType: echo\n  data: "
    assert only_fault(text + "{type: dataset, items: [a]}").message.startswith("must be one of list, graph_template")
    assert only_fault(text + "{items: [a], metadata: []}").message == "has 0 entries for 1 items"
    both = "{items: [a], metadata: [{}], items_metadata: [{}]}"
    assert only_fault(text + both).path == "spec.data.items_metadata"


def test_an_echo_takes_whatever_an_item_is_and_keeps_its_type() -> None:
    text = "apiVersion: tunefleet/v1\nspec:\n  taskType: echo\n  data: {items: ["
    items = "1, 2.5, true, null, '3', {score: 1, tags: [a, 2]}, [1, [2]]"
    (task,) = parse_workflow(f"{text}{items}]}}").tasks
    assert task.spec is not None
    kept = dump_task_spec(task.spec)["data"]["items"]
    assert json.dumps(kept) == '[1, 2.5, true, null, "3", {"score": 1, "tags": ["a", 2]}, [1, [2]]]'
    assert dump_task_spec(load_task_spec(dump_task_spec(task.spec)))["data"]["items"] == kept
    misspelt = only_fault(f"{text}{{node: a, path: n, pth: x}}]}}")
    assert (misspelt.path, misspelt.message) == ("spec.data.items.0.pth", "is not a known key")
    fault = only_fault(f"{text}1, {{a: [.inf]}}]}}")
    assert (fault.path, fault.message) == ("spec.data.items.1", "contains a number that is not finite")


@pytest.mark.parametrize("name", ["''", "a/b", "'a\\b'", "x" * 201, '"a\\nb"'])
def test_names_that_cannot_be_shown(name: str) -> None:
    text = SMALLEST.replace("spec:", f"metadata: {{name: {name}}}\nspec:")
    assert only_fault(text).path == "metadata.name"


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "the file is empty"),
        ("# nothing\n", 1, 1, "the file is empty"),
        ("- a\n", 1, 1, "the file is not a mapping"),
        ("just words", 1, 1, "the file is not a mapping"),
        ("a: [1, 2", 1, 4, "the [ that opens here is never closed"),
        ("a: b: c", 1, 5, "the value contains `: `"),
        ("a: 1\n---\nb: 2\n", 2, 1, "the file contains a second YAML document"),
        ("a: 1\nb: 2\na: 3\n", 3, 1, "is a duplicate key; the first one is in line 1"),
        ("a: !!python/object:os.system x", 1, 4, "has the tag python/object:os.system"),
        ("a: !mine [1]", 1, 4, "has the tag !mine"),
        ("a: !mine {b: 1}", 1, 4, "has the tag !mine"),
        ("1: a", 1, 1, "has a key that is not a string"),
        ("? [a]\n: b", 1, 3, "has a key that is not a string"),
        ("a: *missing", 1, 4, "*missing has no anchor &missing above it"),
        ("<<: 3\na: 1", 1, 1, "`<<` needs a mapping"),
        ("a: " + "9" * 5000, 1, 4, "is too large: integers have 64 bits"),
        ("a:\n\tb: 1", 2, 1, "the line is indented with a tab"),
        ("a:\n  - é: \x07", 2, 8, "a character that YAML does not allow, U+0007"),
        ("a:\n- é\ud800", 2, 4, "not valid Unicode"),
        ("a: " + "[" * 60 + "]" * 60, 1, 51, "nested too deeply"),
        ("a: &a [*a]", 1, 4, "refers to the anchor &a (line 1), whose value it is part of"),
        ("x: 1\na: &b\n  <<: *b", 3, 3, "merges the anchor &b (line 2), whose value it is part of"),
    ],
)
def test_text_that_is_no_document(text: str, line: int, column: int, message: str) -> None:
    fault = faults(text)[0]
    assert message in fault.message
    assert (fault.line, fault.column) == (line, column)


@pytest.mark.parametrize(
    ("text", "line", "column", "message", "hint"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", 2, 4, "the [ that opens here is not closed before line 3", "add ]"),
        ("a:\n  b: {c: 1\nd:\n  - e\n", 2, 6, "the { that opens here is not closed before line 3", "add }"),
        ("a: {b: [1, 2}\n", 1, 8, "the [ that opens here is closed with } in line 1", "write ]"),
        ('{\n  "a": 1\n  "b": 2\n}', 3, 6, "or a comma is missing", "add }, or a comma between two entries"),
        ('a: 1\nb: "two\nc: 3\n', 2, 4, 'the " that opens here is never closed', 'add the closing "'),
        ("a: 'one\nb: 'two'\n", 1, 4, "the ' that opens here is closed only in line 2", "the closing ' to line 1"),
        ("a: [1]]\n", 1, 7, "the ] closes nothing", "remove it"),
        ("a:\n\tb: 1", 2, 1, "the line is indented with a tab", "indent with spaces, not tabs"),
        ("a:\n  b: 1\n\tc: 2\n\td: 3\n", 3, 1, "the line is indented with a tab", "(2 lines have tabs)"),
        ("a:\n    b: 1\n  c: 2\n", 3, 3, "indented by 2 spaces, which matches no block above it", "by 0 or 4 spaces"),
        ("a:\n  b: 1\n    c: 2\n", 3, 5, "by 4 spaces, below line 2 with 2, which already has a value", "by 2 spaces"),
        ("a:\n  - b\n  c: 1\n", 3, 3, "a key is among the entries of a list", "start the line with `- `"),
        ("a:\n  b: 1\n  - c\n", 3, 3, "a list entry (`- `) is among the keys of a mapping", "its own key"),
        ("a:1\nb: 2\n", 1, 2, "there is no space after the colon", "write `a: 1`"),
        ("a:\n  b: 1\n  c:2\n", 3, 4, "there is no space after the colon", "write `c: 2`"),
        ("a: {b:2}\n", 1, 5, "has no space after the colon", "write `b: 2`"),
        ("a: 1\nb\nc: 2\n", 2, 1, "'b' is neither `key: value` nor `- entry`", "add a colon after the key"),
        ("a: 'x', 'y'\n", 1, 7, "a comma follows the value", "or write a list: [a, b]"),
        ("a: 'x' y\n", 1, 8, "text follows a value that has already ended: 'y'", "put the whole value in quotes"),
        ("a: @x\n", 1, 4, "a value cannot start with @", "put the value in quotes"),
        ("a: *.json\n", 1, 4, "a value that starts with * is an alias", "put the value in quotes"),
        ("a: &x 1\nb: &x 2\n", 2, 4, "the anchor &x is already defined in line 1", "another name"),
        ('a: "C:\\data"\n', 1, 7, "\\d is not an escape sequence in double quotes", "use single quotes"),
        ("a: {{ b }}\n", 1, 5, "has a key that is not a string", "put the value in quotes"),
        ("a:\n\u00a0\u00a0b: 1\n", 2, 1, "the key b starts with a no-break space (U+00A0)", "normal spaces"),
        ("a: &b 3\nc:\n  <<: *b\n", 3, 3, "`<<` needs a mapping", "refer to one with an anchor"),
    ],
)
def test_syntax_errors_name_where_they_start_and_the_fix(
    text: str, line: int, column: int, message: str, hint: str
) -> None:
    fault = only_fault(text)
    assert (fault.line, fault.column) == (line, column)
    assert message in fault.message
    assert hint in (fault.hint or "")


@pytest.mark.parametrize(
    ("data", "line", "column", "message", "hint"),
    [
        ("a: é\n".encode("utf-16"), 1, 1, "encoded in UTF-16, not in UTF-8", "iconv -f UTF-16 -t UTF-8"),
        ("a: 1\n".encode("utf-16-be"), 1, 1, "encoded in UTF-16BE", "iconv -f UTF-16BE"),
        ("a: 1\n".encode("utf-16-le"), 1, 1, "encoded in UTF-16LE", "iconv -f UTF-16LE"),
        ("a: é\n".encode("utf-32"), 1, 1, "encoded in UTF-32", "iconv -f UTF-32"),
        ("a: 1\nb: é\n".encode("latin-1"), 2, 4, "byte 9 is 0xE9, which is not UTF-8; it is 'é' in Latin-1", "iconv"),
        (b"\xef\xbb\xbfa: 1\nb: \xe9\n", 2, 4, "byte 12 is 0xE9", "iconv"),
        (b"a: 1\nb: \0\n", 2, 4, "byte 9 is NUL", "remove the byte"),
        (b"\x80\x04\x95\x0c", 1, 1, "byte 1 is 0x80", "iconv"),
    ],
)
def test_encodings_that_are_not_utf_8(data: bytes, line: int, column: int, message: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        decode_file(data, "w.yaml")
    (fault,) = caught.value.faults
    assert caught.value.filename == "w.yaml"
    assert (fault.line, fault.column) == (line, column)
    assert message in fault.message
    assert hint in (fault.hint or "")


def test_utf_8_with_a_byte_order_mark() -> None:
    text = decode_file(b"\xef\xbb\xbf" + SMALLEST.encode(), "w.yaml")
    assert parse_workflow(text).tasks


def test_a_value_without_a_space_after_its_key() -> None:
    fault = only_fault(training(training="batch_size:2"))
    assert (fault.path, fault.hint) == ("spec.training", "write a space after the colon: `batch_size: 2`")


def test_a_deep_text_does_not_end_the_process() -> None:
    assert "nested too deeply" in only_fault("[" * 200_000).message


def test_a_short_text_cannot_grow_without_bound() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    fault = only_fault("\n".join(lines))
    assert fault.message == "has too many values, because aliases of the anchor &a4 (line 5) are expanded"
    assert (fault.path.partition(".")[0], fault.line) == ("a5", 5)


def test_merges_cannot_grow_without_bound() -> None:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 10)]
    assert "too many values" in only_fault("\n".join(lines)).message


def test_a_fault_in_what_was_merged_points_at_it() -> None:
    text = "defaults: &d\n  batch_siz: 3\n" + training(training="{<<: *d}")
    assert [(fault.path, fault.line) for fault in faults(text)] == [
        ("defaults", 1),
        ("spec.training.batch_siz", 2),
    ]


def test_more_faults_than_anybody_reads() -> None:
    text = SMALLEST + "".join(f"  key{index}: 1\n" for index in range(20_000))
    found = faults(text)
    assert len(found) == 201
    assert "and 19,800 more errors" in [fault.message for fault in found]


def test_hints_to_another_scheduler() -> None:
    text = SMALLEST.replace("spec:", "metadata: {annotations: {schedule_hint: {}}}\nspec:")
    fault = only_fault(text)
    assert (fault.path, fault.hint) == (
        "metadata.annotations.schedule_hint",
        "use spec.priority and spec.resources.tags",
    )


def test_hints_for_what_other_tools_call_it() -> None:
    text = training(training="{lr: 1, max_length: 5, per_device_train_batch_size: 4, learningRate: 3}")
    assert [fault.hint for fault in faults(text)] == [
        "did you mean learning_rate?",
        "did you mean max_seq_length?",
        "did you mean batch_size?",
        "did you mean learning_rate?",
    ]


def test_a_key_that_resembles_nothing_lists_what_is_known() -> None:
    assert only_fault(training(limits="{zzz: 1}")).hint == "known keys: max_queue_s, max_runtime_s, stall_after_s"


def test_a_required_key_is_not_also_missing_when_it_is_misspelt() -> None:
    text = training(model="{sorce: {identifier: x}}")
    assert [fault.hint for fault in faults(text)] == ["did you mean source?"]


@pytest.mark.parametrize(
    ("kind", "rest", "path", "meant"),
    [
        (
            "lora_sft",
            "model: {source: {identifier: 'builtin:gsm8k-lama-2m'}}\n  data: {path: 'builtin:gsm8k'}",
            "spec.model.source.identifier",
            "builtin:gsm8k-llama-2m",
        ),
        (
            "lora_sft",
            "model: {source: {identifier: 'builtin:gsm8k-llama-2m'}}\n  data: {path: 'builtin:gsm8k-preference'}",
            "spec.data.path",
            "builtin:gsm8k-preferences",
        ),
        (
            "inference",
            "model: {source: {identifier: 'builtin:gsm8k-llama-2m'}}\n"
            "  data: {type: dataset, url: 'builtin:gsm-8k', column: question}",
            "spec.data.url",
            "builtin:gsm8k",
        ),
        ("data", "sources: [{path: 'builtin:gsm8'}]", "spec.sources.0.path", "builtin:gsm8k"),
        (
            "rag_index",
            "qdrant: {collection: notes}\n  data: {type: list, items: [a]}\n"
            "  embedding: {model: 'builtin:gsm8k-llama2m'}",
            "spec.embedding.model",
            "builtin:gsm8k-llama-2m",
        ),
    ],
)
def test_a_built_in_name_that_does_not_exist_is_found_at_submit(kind: str, rest: str, path: str, meant: str) -> None:
    fault = only_fault(f"apiVersion: tunefleet/v1\nmetadata: {{name: x}}\nspec:\n  taskType: {kind}\n  {rest}\n")
    assert fault.path == path
    assert "is not a built-in" in fault.message
    assert fault.hint is not None
    assert fault.hint.startswith(f"did you mean {meant}? Built in: builtin:")
