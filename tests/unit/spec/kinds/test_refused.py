"""What a task kind does not take is refused by name, each with what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.spec.kinds.whole_documents import whole
from tunefleet.errors import Fault, SpecError
from tunefleet.spec import TASK_KINDS, deep_set, load_task_spec, parse_value
from tunefleet.spec.documents.refused_keys import INSTEAD, REFUSED, REFUSED_KINDS


def faults(spec: dict[str, Any]) -> list[Fault]:
    with pytest.raises(SpecError) as caught:
        load_task_spec(spec)
    return list(caught.value.faults)


@pytest.mark.parametrize("kind", list(REFUSED_KINDS))
def test_kinds_that_are_not_run(kind: str) -> None:
    (fault,) = faults({"taskType": kind, "anything": 1})
    assert fault.path == "spec.taskType"
    assert fault.message == f"{kind!r} tasks are not available: {REFUSED_KINDS[kind].reason}"
    assert fault.hint == REFUSED_KINDS[kind].instead
    assert kind not in TASK_KINDS


@pytest.mark.parametrize("path", list(REFUSED))
def test_keys_that_no_kind_takes(path: str) -> None:
    kind = "python" if path == "image" else "inference"
    spec = whole(kind)
    if path == "model.adapters.kwargs":
        spec["model"]["adapters"][1]["kwargs"] = {"a": 1}
    else:
        deep_set(spec, path, {"a": 1})
    found = faults(spec)
    assert [fault.message for fault in found] == [REFUSED[path].reason]
    assert found[0].hint == REFUSED[path].instead


@pytest.mark.parametrize("value", [None, False, "", "none", [], {}])
@pytest.mark.parametrize("path", list(REFUSED))
def test_a_key_that_no_kind_takes_may_say_what_holds_here_anyway(path: str, value: Any) -> None:
    spec = whole("python" if path == "image" else "inference")
    kept = load_task_spec(spec)
    if path == "model.adapters.kwargs":
        spec["model"]["adapters"][1]["kwargs"] = value
    else:
        deep_set(spec, path, value)
    assert load_task_spec(spec) == kept


@pytest.mark.parametrize(
    ("kind", "path", "kinds"),
    [
        ("sft", "inference", ["inference"]),
        ("sft", "enforce_cpu", ["inference", "embedding"]),
        ("sft", "model.adapters", ["inference"]),
        ("sft", "data.url", ["inference", "embedding", "rag", "rag_index", "api"]),
        ("sft", "data.preferences", ["dpo", "orpo", "reward"]),
        ("sft", "reward_model", ["grpo", "rloo", "ppo"]),
        ("sft", "training.kl_coef", ["ppo"]),
        ("sft", "training.save_freq", ["dpo", "kto", "orpo", "reward", "grpo", "rloo", "ppo"]),
        ("dpo", "training.packing", ["sft", "lora_sft"]),
        ("ppo", "rewards", ["grpo", "rloo"]),
        ("dpo", "data.prompts", ["sft", "lora_sft", "grpo", "rloo", "ppo"]),
        ("inference", "training", ["sft", "lora_sft", "dpo", "ppo"]),
        ("inference", "qdrant", ["rag", "rag_index"]),
        ("inference", "data.dataset_name", ["sft", "lora_sft", "dpo", "ppo"]),
        ("rag", "parallel", ["inference", "embedding", "echo"]),
        ("python", "shard", ["inference", "embedding", "echo"]),
        ("echo", "code", ["python"]),
        ("echo", "model", ["sft", "lora_sft", "dpo", "ppo", "inference", "embedding"]),
    ],
)
def test_keys_of_other_kinds(kind: str, path: str, kinds: list[str]) -> None:
    spec = whole(kind)
    deep_set(spec, path, {"a": 1})
    (found,) = (fault for fault in faults(spec) if fault.path == f"spec.{path}")
    assert found.message.startswith("is only for ")
    named = found.message.removeprefix("is only for ").removesuffix(" tasks").replace(" and ", ", ").split(", ")
    assert set(kinds) <= set(named)
    assert kind not in named
    assert found.hint == INSTEAD.get(path, "remove it")


def test_every_hint_about_another_kind_is_about_a_key_that_a_kind_takes() -> None:
    for path in INSTEAD:
        message = next(fault.message for fault in _with(path) if fault.path == f"spec.{path}")
        assert message.startswith("is only for"), path


def _with(path: str) -> list[Fault]:
    for kind in ("sft", "echo", "inference"):
        spec = whole(kind)
        deep_set(spec, path, {"a": 1})
        found = faults(spec)
        if any(fault.path == f"spec.{path}" and fault.message.startswith("is only for") for fault in found):
            return found
    raise AssertionError(path)


ODD: list[tuple[str, str, str, str]] = [
    ("dpo", "data: {preferences: []}", "data.preferences", "at least 1"),
    ("dpo", "data: {preferences: [{prompt: a, chosen: b}]}", "data.preferences.0.rejected", "is required"),
    ("dpo", "data: {jsonl: {path: x}, chosen_column: x}", "data.chosen_column", "has no effect"),
    ("python", "inputs: [{stage: a, mountPath: /x}]", "inputs.0.mountPath", "nothing is mounted"),
    ("dpo", "data: {dataset_name: a, jsonl: {path: b}}", "data.jsonl", "cannot be combined with dataset_name"),
    ("ppo", "training: {steps: 3, max_steps: 4}", "training.steps", "contradicts max_steps"),
    ("ppo", "training: {early_stopping: true}", "training.early_stopping", "needs a target divergence"),
    ("ppo", "training: {early_stopping: {patience: 3}}", "training.early_stopping", "must be true or false"),
    ("ppo", "training: {save_safetensors: false}", "training.save_safetensors", "always saved as safetensors"),
    ("ppo", "training: {batch_size: 2, per_device_train_batch_size: 2}", "training.per_device_train_batch_size",
     "is an alias of batch_size"),
    ("ppo", "training: {save_freq: 2, save_steps: 2}", "training.save_freq", "is an alias of save_steps"),
    ("ppo", "training: {temperature: 1.5}", "training.temperature", "contradicts generation.temperature"),
    ("inference", "data: {type: dataset}", "data.url", "is required with type: dataset"),
    ("inference", "data: {type: list, items: [a], url: x}", "data.url", "is only for type: dataset"),
    ("inference", "data: {type: list, items: []}", "data.items", "at least 1"),
    ("inference", "data: {type: list, items: [3]}", "data.items.0", "must be a string, a list of messages, or"),
    ("inference", "data: {type: list, items: [{node: a}]}", "data.items.0.path", "is required"),
    ("inference", "data: {type: list, items: [[]]}", "data.items.0", "must be a string, a list of messages"),
    ("inference", "data: {type: list, items: [[hi]]}", "data.items.0.0", "is not a message"),
    ("inference", "data: {type: list, items: [[{role: user, content: a}, {content: b}]]}", "data.items.0.1",
     "is not a message"),
    ("inference", "data: {type: list, items: [[{role: user, content: a}, {role: assistant, content: b}]]}",
     "data.items.0.1", "is an assistant message"),
    ("inference", "{data: {type: list, items: [[{role: system, content: a}, {role: user, content: b}]]}, "
     "inference: {system_prompt: c}}", "inference.system_prompt", "begin with a system message"),
    ("inference", "{data: {type: list, items: [[{role: user, content: b}]]}, inference: {chat_template: false}}",
     "inference.chat_template", "is required for items that are lists of messages"),
    ("embedding", "data: {type: list, items: [[{role: user, content: b}]]}", "data.items.0",
     "must be a string or a mapping"),
    ("inference", "model: {source: {identifier: m}, vllm: {convert: embed}}", "model.vllm.convert", "cannot generate"),
    ("inference", "model: {source: {identifier: m}, vllm: {convert: reward}}", "model.vllm.convert", "must be one of"),
    ("embedding", "model: {source: {identifier: m}, vllm: {convert: classify}}", "model.vllm", "without vLLM"),
    ("embedding", "model: {source: {identifier: m}, vllm: {convert: embed, dtype: half}}", "model.vllm",
     "without vLLM"),
    ("sft", "training: {project: p}", "training.project", "without a tracker"),
    ("sft", "training: {project: p, report_to: [tensorboard]}", "training.project", "without a tracker"),
    ("ppo", "training: {project: p, tracker_project_name: p, log_with: wandb}", "training.tracker_project_name",
     "is an alias of project"),
    ("echo", "output: {destination: {type: s3, url: s3://bucket/a}}", "output.destination.access_key", "is required"),
    ("echo", "output: {destination: {type: s3, url: s3://b, access_key: AKIA, secret_key: x}}",
     "output.destination.access_key", "must name a secret"),
    ("echo", "output: {destination: {type: s3, url: 's3://bucket/../x', access_key: '${secret:A}', "
     "secret_key: '${secret:B}'}}", "output.destination.url", "is not a valid bucket URL"),
    ("echo", "output: {destination: {type: s3, url: 'https://x/y', access_key: '${secret:A}', "
     "secret_key: '${secret:B}'}}", "output.destination.url", "does not match type: s3"),
    ("echo", "output: {destination: {type: http, url: 's3://bucket/a'}}", "output.destination.url", "type: http"),
    ("echo", "output: {destination: {type: http, access_key: '${secret:A}'}}", "output.destination.access_key",
     "has no effect with type: http"),
    ("echo", "output: {destination: {type: s3, url: 's3://bucket/${secret:C}', access_key: '${secret:A}', "
     "secret_key: '${secret:B}'}}", "output.destination.url", "is not a valid bucket URL"),
    ("echo", "output: {destination: {type: s3, url: 's3://ab..c/x', access_key: '${secret:A}', "
     "secret_key: '${secret:B}'}}", "output.destination.url", "is not a valid bucket URL"),
    ("echo", "output: {destination: {type: http, url: 'http://[::1'}}", "output.destination.url", "must be a URL"),
    ("echo", "output: {destination: {type: http, url: 'http://host:port/x'}}", "output.destination.url",
     "must be a URL"),
    ("echo", "output: {destination: {type: s3, url: 's3://-abc/x', access_key: '${secret:A}', "
     "secret_key: '${secret:B}'}}", "output.destination.url", "is not a valid bucket URL"),
    ("echo", "output: {destination: {type: s3, url: 's3://bucket//x', access_key: '${secret:A}', "
     "secret_key: '${secret:B}'}}", "output.destination.url", "is not a valid bucket URL"),
    ("echo", "output: {artifacts: [.]}", "output.artifacts.0", "must be the name of a file or folder"),
    ("echo", "output: {artifacts: [././]}", "output.artifacts.0", "must be the name of a file or folder"),
    ("echo", f"output: {{artifacts: [{'x' * 300}]}}", "output.artifacts.0", "must be the name of a file or folder"),
    ("echo", "image: docker.io/x", "image", "has no effect"),
    ("inference", "sandbox: gvisor", "sandbox", "is not available"),
    ("inference", "data: {type: list, items: [{node: a, path: b, c: d}]}", "data.items.0.c", "not a known key"),
    ("inference", "data: {type: dataframe}", "data.type", "must be one of dataset, list, graph_template"),
    ("inference", "data: {type: dataset, url: d, trust_remote_code: true}", "data.trust_remote_code", "cannot be"),
    ("inference", "data: {type: dataset, url: d, buffer_size: 3}", "data.buffer_size", "without shuffle: true"),
    ("inference", "inference: {systemPrompt: a, system_prompt: b}", "inference.systemPrompt", "is an alias of"),
    ("inference", "inference: {max_tokens: 5, max_new_tokens: 5}", "inference.max_new_tokens", "is an alias of"),
    ("inference", "inference: {max_tokens: 5, min_tokens: 6}", "inference.min_tokens", "at most max_tokens"),
    ("inference", "inference: {templates: [{type: int}]}", "inference.templates.0.name", "is required"),
    ("inference", "inference: {templates: {name: x}}", "inference.templates", "is not a JSON Schema"),
    ("inference", "inference: {stop: ['']}", "inference.stop.0", "must not be empty"),
    ("inference", "enforce_cpu: true", "enforce_cpu", "contradicts resources.hardware.gpu.count: 1"),
    ("inference", "{enforce_cpu: true, resources: {}}", "enforce_cpu", "contradicts model.vllm"),
    ("inference", "shard: {index: 3, total: 3}", "shard.index", "must be less than total"),
    ("inference", "{shard: {index: 0, total: 3}, resources: {replicas: 2}}", "shard", "cannot be split again"),
    ("inference", "{parallel: {enabled: true, max_shards: 3}, resources: {replicas: 2}}", "resources.replicas",
     "contradicts max_shards: 3"),
    ("inference", "{parallel: {enabled: false}, resources: {replicas: 2}}", "resources.replicas",
     "contradicts parallel.enabled: false"),
    ("inference", "parallel: {max_shards: 3}", "parallel.max_shards", "has no effect without enabled: true"),
    ("inference", "postprocess: {jsonl_export: {path: /etc/x, fields: {a: prompt}}}", "postprocess.jsonl_export.path",
     "must be a relative path"),
    ("inference", "postprocess: {jsonl_export: {path: x, fields: {}}}", "postprocess.jsonl_export.fields",
     "at least 1"),
    ("inference", "postprocess: {jsonl_export: {path: x, fields: {a: prompt}, required_fields: [b]}}",
     "postprocess.jsonl_export.required_fields.0", "is not one of fields"),
    ("inference", "postprocess: {jsonl_export: {path: x, fields: {a: {from: metadata}}}}",
     "postprocess.jsonl_export.fields.a.key", "is required with from: metadata"),
    ("inference", "postprocess: {jsonl_export: {path: x, fields: {a: {from: moon}}}}",
     "postprocess.jsonl_export.fields.a.from", "literal"),
    ("inference", "model: {source: {identifier: m}, adapters: [{name: a}]}", "model.adapters.0", "has no source"),
    ("inference", "model: {source: {identifier: m}, adapters: [{type: dora, path: a}]}", "model.adapters.0.type",
     "must be one of lora"),
    ("inference", "model: {source: {identifier: m}, vllm: {hf_token: hf_abc}}", "model.vllm.hf_token", "be visible"),
    ("inference", "model: {source: {identifier: m}, vllm: {env_vars: {CUDA_VISIBLE_DEVICES: '0'}}}",
     "model.vllm.env_vars.CUDA_VISIBLE_DEVICES", "is set by the worker"),
    ("inference", "model: {source: {identifier: m}, vllm: {tensor_parallel_size: 4}}",
     "model.vllm.tensor_parallel_size", "needs 4 GPUs, but the task gets 1"),
    ("inference", "model: {source: {identifier: m}, vllm: {pipeline_parallel_size: 4}}",
     "model.vllm.pipeline_parallel_size", "is not a known key"),
    ("rag", "{query: x}", "query", "cannot be combined with data"),
    ("rag", "{data: null}", "data", "is required"),
    ("rag", "qdrant: {url: 'http://x', collection: c, api_key: abc}", "qdrant.api_key", "would be visible"),
    ("rag", "qdrant: {url: 'file:///x', collection: c}", "qdrant.url", "starts with http:// or https://"),
    ("api", "api: {method: BREW}", "api.method", "must be one of GET"),
    ("api", "api: {json: {a: 1}, body: x}", "api.body", "cannot be combined with json"),
    ("api", "api: {method: GET, json: {a: 1}}", "api.json", "has no effect with method: GET"),
    ("api", "api: {headers: {'a b': c}}", "api.headers.a b", "is not a valid HTTP header"),
    ("api", 'api: {headers: {A: "x\\r\\nB: y"}}', "api.headers.A", "is not a valid HTTP header"),
    ("api", "api: {headers: {A: b, a: c}}", "api.headers.a", "is a duplicate"),
    ("python", "code: 'def main(:'", "code", "is not valid Python (line 1"),
    ("python", "code: 'def other(): pass'", "entrypoint", "'main' is not defined in the code"),
    ("python", "inputs: [{mountPath: null}]", "inputs.0.stage", "is required"),
    ("python", "entrypoint: a.b", "entrypoint", "is not a valid function name"),
    ("python", "network: none", "requirements", "cannot be installed without network"),
    ("python", "requirements: ['--index-url=http://x']", "requirements.0", "is not a pip requirement"),
    ("python", "env: {LD_PRELOAD: x}", "env.LD_PRELOAD", "is set by the worker"),
    ("python", "image: python:3.12", "image", "containers are not used"),
    ("command", "command: python train.py", "command", "must be a list, since no shell parses it"),
    ("command", "files: [a/x.json, b/x.json]", "files.1", "has the same name as another file: x.json"),
    ("command", "workdir: 'https://x/a'", "workdir", "is a URL"),
    ("command", "outputs: {logs: a}", "outputs.logs", "is not a valid output name"),
    ("data", "steps: [{shuffle: {}, limit: 3}]", "steps.0", "must be exactly one step"),
    ("data", "steps: [{split: {test: 0.1}}, shuffle]", "steps.0", "split must be the last step"),
    ("data", "steps: [{filter: {min_chars: 3}}]", "steps.0.filter.column", "is required"),
    ("data", "steps: [{filter: {column: a, matches: '('}}]", "steps.0.filter.matches", "is not a regular expression"),
    ("data", "steps: [{filter: {column: a, max_tokens: 3}}]", "steps.0.filter.tokenizer", "is required to count"),
    ("data", "steps: [{map: {template: {a: '{b'}}}]", "steps.0.map.template.a", "has an unmatched { at character 1"),
    ("data", "steps: [shuffle]", "sources.0.weight", "has no effect without a step mix"),
    ("data", "parallel: {enabled: true}", "steps.1", "mix needs all rows"),
    ("python", "resources: {replicas: 2}", "resources.replicas", "python tasks have no items to split"),
    ("echo", "data: {type: graph_template, items: [a]}", "data.template", "is required"),
    ("echo", "output: {destination: {type: local, path: ../x}}", "output.destination.path", "must be a folder"),
    ("echo", "output: {destination: {type: local, path: '~/x'}}", "output.destination.path", "must be a literal path"),
    ("echo", "output: {destination: {type: local, path: $HOME/x}}", "output.destination.path", "a literal path"),
    ("lora_sft", "training: {deepspeed: {zero_optimization: {stage: 3, offload_param: {nvme_path: /mnt/nvme}}}}",
     "training.deepspeed.zero_optimization.offload_param.nvme_path", "is a path"),
    ("lora_sft", "training: {deepspeed: {flops_profiler: {output_file: ../x}}}",
     "training.deepspeed.flops_profiler.output_file", "is a path"),
    ("echo", "output: {artifacts: [\"a\\u202egnp.exe\"]}", "output.artifacts.0", "invisible characters"),
    ("echo", "output: {destination: {type: http, path: x}}", "output.destination.path", "with type: http"),
    ("echo", "output: {destination: {type: http, method: GET}}", "output.destination.method",
     "must be one of POST, PUT"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "path", "message"), ODD)
def test_each_fault(kind: str, text: str, path: str, message: str) -> None:
    given = parse_value(text)
    spec = {**whole(kind), **given}
    if "parallel" in spec and "shard" in given:
        del spec["parallel"]
    found = faults(spec)
    assert any(fault.path == f"spec.{path}" and message in fault.message for fault in found), [str(f) for f in found]


def test_python_code_is_short_enough_to_be_stored() -> None:
    body = "def main(inputs):\n    pass\n"
    longest = body + "#" * (256 * 1024 - len(body))
    load_task_spec({"taskType": "python", "code": longest})
    (fault,) = faults({"taskType": "python", "code": longest + "#"})
    assert fault.path == "spec.code"
    assert "at most 262,144" in fault.message


def test_fault_26_a_requirement_that_cannot_be_read_is_never_dropped() -> None:
    for memory, known in (("1.5Gi", 1536 << 20), ("64.5Gi", 66048 << 20), ("512M", 512 << 20), (1024, 1024)):
        for kind in TASK_KINDS:
            spec = whole(kind)
            spec["resources"]["hardware"] |= {"memory": memory, "disk": memory}
            hardware = load_task_spec(spec).resources.hardware
            assert (hardware.memory_bytes, hardware.disk_bytes) == (known, known)
    for key, value in (("cpu", "8c"), ("cpu", "0.5"), ("memory", "12 apples"), ("disk", "1.5Xi"), ("memory", "-1Gi")):
        spec = whole("echo")
        spec["resources"]["hardware"][key] = value
        (fault,) = faults(spec)
        assert fault.path == f"spec.resources.hardware.{key}"
        assert fault.hint
