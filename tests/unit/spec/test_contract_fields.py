"""Every field that the public documents name for supervised trainings has an effect, or is refused by name.

The first column is the field, the second a value that a document may have; `refused` says that it is refused, and
the refusal must say what to do instead. A field that is merely an "unknown key" would be a silent gap.
"""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.errors import SpecError
from tunefleet.spec import deep_set, load_task_spec
from tunefleet.spec.documents.fault_messages import walk_blocks
from tunefleet.spec.documents.refused_keys import REFUSED
from tunefleet.spec.tasks.task_types import TASK_KINDS

FIELDS: list[tuple[str, Any, str]] = [
    # resources
    ("resources.replicas", 1, "accepted"),
    ("resources.replicas", 2, "refused"),
    ("resources.estimatedLoad", 4, "accepted"),
    ("resources.hardware.cpu", "8", "accepted"),
    ("resources.hardware.cpu", "0.5", "refused"),
    ("resources.hardware.memory", "32Gi", "accepted"),
    ("resources.hardware.gpu.count", 1, "accepted"),
    ("resources.hardware.gpu.count", 2, "accepted"),
    ("resources.hardware.gpu.type", "any", "accepted"),
    ("resources.hardware.gpu.type", "", "accepted"),
    ("resources.hardware.gpu.memory", "46Gi", "accepted"),
    # model
    ("model.source.type", "huggingface", "accepted"),
    ("model.source.identifier", "gpt2", "accepted"),
    ("model.source.revision", "main", "accepted"),
    ("model.source.trust_remote_code", True, "accepted"),
    ("model.vllm", {"dtype": "auto"}, "refused"),
    ("model.transformers.device_map", "auto", "accepted"),
    ("model.transformers.device_map", "cpu", "refused"),
    ("model.transformers.dtype", "float16", "accepted"),
    ("model.transformers.trust_remote_code", True, "accepted"),
    ("model.transformers.low_cpu_mem_usage", True, "accepted"),
    ("model.transformers.low_cpu_mem_usage", False, "refused"),
    ("model.transformers.load_in_8bit", True, "lora"),
    ("model.transformers.load_in_4bit", True, "lora"),
    ("model.transformers.use_flash_attention_2", True, "accepted"),
    ("model.adapters", [], "refused"),
    ("model.config", {"fp16": True, "device_map_auto": True}, "accepted"),
    ("model.config.device_map_auto", False, "refused"),
    ("model.diffusers", {"pipeline": "x"}, "refused"),
    ("model.diffusers", {}, "accepted"),
    ("image", "none", "accepted"),
    ("checkpoint.load", {"taskId": "t"}, "accepted"),
    ("interactive", False, "accepted"),
    # data
    ("data.dataset_name", "openai/gsm8k", "accepted"),
    ("data.config_name", "main", "accepted"),
    ("data.split", "train[:5%]", "accepted"),
    ("data.revision", "main", "accepted"),
    ("data.trust_remote_code", False, "accepted"),
    ("data.trust_remote_code", True, "refused"),
    ("data.separator", "\n\n", "accepted"),
    ("data.text_field", "text", "accepted"),
    ("data.max_samples", 10, "accepted"),
    ("data.jsonl.path", "a.jsonl", "accepted"),
    ("data.jsonl.worker_path", "/a.jsonl", "accepted"),
    ("data.jsonl.text_field", "text", "accepted"),
    ("data.jsonl.separator", " ", "accepted"),
    *((f"data.jsonl.{name}", "https://x/rows.jsonl", "accepted") for name in ("url", "download_url")),
    *((f"data.jsonl.{name}", {"Authorization": "x"}, "accepted") for name in ("headers", "download_headers")),
    *((f"data.jsonl.{name}", 60, "accepted") for name in ("download_timeoutSec", "timeoutSec", "timeout")),
    *((f"data.{name}", "x", "refused") for name in ("type", "url", "name", "column", "shuffle", "items", "template")),
    # training
    ("training.num_train_epochs", 1.0, "accepted"),
    ("training.batch_size", 2, "accepted"),
    ("training.gradient_accumulation_steps", 1, "accepted"),
    ("training.learning_rate", "5e-7", "accepted"),
    ("training.warmup_steps", 0, "accepted"),
    ("training.logging_steps", 10, "accepted"),
    ("training.save_steps", 100, "accepted"),
    ("training.save_strategy", "steps", "accepted"),
    ("training.max_seq_length", 1024, "accepted"),
    ("training.packing", True, "accepted"),
    ("training.gradient_checkpointing", True, "accepted"),
    ("training.fp16", True, "accepted"),
    ("training.bf16", True, "accepted"),
    ("training.save_model", False, "accepted"),
    ("training.seed", 42, "accepted"),
    ("training.early_stopping", {}, "refused"),  # needs held-out rows, which the base document lacks
    ("training.allow_multi_gpu", False, "accepted"),
    ("training.allow_multi_gpu", True, "accepted"),
    ("training.nproc_per_node", 1, "accepted"),
    ("training.nproc_per_node", 2, "refused"),  # without a count of GPUs, which the base document lacks
    ("training.visible_devices", "0,1", "accepted"),
    ("training.visible_devices", [0, 1], "accepted"),
    ("training.primary_gpu", 0, "accepted"),
    ("training.deepspeed", {"zero_optimization": {"stage": 2}}, "accepted"),
    ("training.deepspeed", "zero.json", "accepted"),
    ("training.deepspeed", '{"zero_optimization": {"stage": 2}}', "accepted"),
    ("training.auto_deepspeed", True, "accepted"),
    ("training.auto_deepspeed_stage", 2, "accepted"),
    ("training.zero_stage", 2, "accepted"),
    ("training.ddp_find_unused_parameters", True, "accepted"),
    ("training.parallelism", "ddp", "accepted"),
    ("training.parallelism", "device_map", "accepted"),
    ("training.resume_from_path", "x", "accepted"),
    *(
        (f"training.{name}", 1, "refused")
        for name in ("mini_batch_size", "num_mini_batches", "steps", "ppo_epochs", "kl_coef", "temperature")
    ),
    *(
        (f"training.{name}", 1, "refused")
        for name in ("target_kl", "optimize_cuda_cache", "log_with", "tracker_project_name", "save_freq")
    ),
    # adapter
    ("lora.r", 16, "lora"),
    ("lora.alpha", 32, "lora"),
    ("lora.dropout", 0.05, "lora"),
    ("lora.bias", "none", "lora"),
    ("lora.target_modules", ["q_proj"], "lora"),
    ("lora.task_type", "CAUSAL_LM", "lora"),
    ("lora.use_rslora", True, "lora"),
    # other blocks
    *(
        (name, {}, "refused")
        for name in ("reward_model", "generation", "inference", "postprocess", "qdrant", "embedding", "search")
    ),
    ("agent", {"timeout": 5}, "refused"),
    *((name, "x", "refused") for name in ("query", "configName", "task", "enforce_cpu")),
    *((name, {}, "refused") for name in ("parallel", "shard")),
    ("sloSeconds", 3600, "accepted"),
    ("_upstreamResults", {"a": {}}, "refused"),
    # output
    ("output.destination.type", "local", "accepted"),
    ("output.destination.type", "http", "accepted"),
    ("output.artifacts", ["responses.json", "logs"], "accepted"),
    ("output.artifacts", ["final_lora/", "final_lora.tar.gz"], "accepted"),
    ("output.artifacts", ["artifacts/checkpoints", "results.json"], "accepted"),
    ("output.artifacts", ["something", "train.log"], "accepted"),
    ("output.artifacts", ["../something"], "refused"),
    ("output.artifacts", ["/etc/passwd"], "refused"),
    ("output.destination.path", "./results", "accepted"),
    *(
        ("output.destination", {"type": "http", name: value}, "accepted")
        for name, value in (
            ("url", "https://x/results"),
            ("method", "PUT"),
            ("headers", {"Authorization": "Bearer x"}),
            ("timeoutSec", 15),
            ("retries", 2),
            ("retryBackoffSec", 0.8),
        )
    ),
    *(
        (f"output.destination.{name}", value, "refused")  # have no effect with `type: local`
        for name, value in (("url", "https://x/results"), ("timeoutSec", 15), ("retries", 2))
    ),
    ("output.destination", {"type": "http", "path": "x"}, "refused"),
    # checkpoint
    ("checkpoint.load", {"type": "local", "path": "x"}, "accepted"),
    ("checkpoint.load", {"path": "x", "archive_format": "tgz", "subdir": "y"}, "accepted"),
    ("checkpoint.load", {"uri": "file:///x"}, "accepted"),
    ("checkpoint.load", {"taskId": "task-1"}, "accepted"),
    ("checkpoint.load", {"task_id": "task-1", "filename": "final_model.tar.gz"}, "accepted"),
    ("checkpoint.load", {"type": "http", "taskId": "task-1", "base_url": "http://x", "headers": {}}, "accepted"),
    ("checkpoint.load", {"type": "http", "url": "https://x/a.zip", "archive_format": "zip"}, "accepted"),
    ("checkpoint.load", {"type": "http", "url": "https://x/a.tar", "timeoutSec": 5, "headers": {"A": "b"}}, "accepted"),
    ("checkpoint.load", {"url": "https://x/a.zip"}, "refused"),
    ("checkpoint.load", {"type": "http"}, "refused"),
    ("checkpoint.load", {"path": "x", "uri": "y"}, "refused"),
    ("checkpoint.load", {"path": "x", "headers": {"A": "b"}}, "refused"),
    ("checkpoint.load", {"path": "x", "filename": "y"}, "refused"),
    ("checkpoint.load", {"path": "x", "base_url": "http://x"}, "refused"),
    ("checkpoint.load", {"uri": "s3://bucket/x"}, "refused"),
]


def document(kind: str) -> dict[str, Any]:
    return {"taskType": kind, "model": {"source": {"identifier": "x"}}, "data": {"dataset_name": "x"}}


@pytest.mark.parametrize("kind", ["sft", "lora_sft"])
@pytest.mark.parametrize(("path", "value", "expected"), FIELDS)
def test_each_field_of_the_contract(kind: str, path: str, value: Any, expected: str) -> None:
    spec = document(kind)
    if path.startswith("data.jsonl"):
        spec["data"] = {"jsonl": {"path": "x"} if path != "data.jsonl.worker_path" else {}}
    deep_set(spec, path, value)
    if expected == "accepted" or (expected == "lora" and kind == "lora_sft"):
        load_task_spec(spec)
        return
    with pytest.raises(SpecError) as caught:
        load_task_spec(spec)
    for fault in caught.value.faults:
        assert fault.hint, str(fault)
        assert fault.path.startswith(f"spec.{path.partition('.')[0]}")
        if expected == "refused":
            assert "is not a known key" not in fault.message, str(fault)


def test_prompt_and_response_in_all_spellings() -> None:
    for pair in (("prompt_column", "response_column"), ("prompt_field", "response_field")):
        spec = document("sft")
        spec["data"].update(zip(pair, "qa", strict=True))
        load_task_spec(spec)
    spec = document("sft")
    spec["data"] = {"jsonl": {"path": "x", "prompt_field": "q", "response_field": "a"}, "max_samples": 3}
    load_task_spec(spec)
    spec["data"] = {"jsonl_path": "x", "prompt_field": "q", "response_field": "a", "separator": "y"}
    load_task_spec(spec)


def test_nothing_is_both_taken_and_refused() -> None:
    for kind in TASK_KINDS.values():
        for path, block in walk_blocks(kind):
            for name, field in block.model_fields.items():
                assert ".".join(map(str, (*path, field.alias or name))) not in REFUSED, kind


def test_every_refusal_says_what_to_do() -> None:
    for path, refusal in REFUSED.items():
        assert refusal.reason, path
        assert refusal.instead, path
        assert not refusal.reason.endswith("."), path
