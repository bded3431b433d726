"""Every key of every task kind is taken, and means what the reference says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from tests.unit.spec.kinds.whole_documents import specs, whole
from tunefleet.errors import SpecError
from tunefleet.spec import (
    TASK_KINDS,
    InferenceTaskSpec,
    PpoSpec,
    asked_shards,
    dump_task_spec,
    fill_secrets,
    load_task_spec,
    parse_workflow,
    resolve,
    secrets_of,
)
from tunefleet.spec.documents.fault_messages import walk_blocks

KINDS = list(TASK_KINDS)
ELSEWHERE = ("data.template", "notify")
"""Blocks with tests of their own."""


def keys(value: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield ".".join((*path, key))
            yield from keys(inner, (*path, key))
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner, path)


@pytest.mark.parametrize("kind", KINDS)
def test_whole_documents_are_read_and_stored(kind: str) -> None:
    for spec in specs(kind):
        loaded = load_task_spec(spec)
        assert type(loaded) is TASK_KINDS[kind]
        assert load_task_spec(dump_task_spec(loaded)) == loaded, "what is stored is read again"


def test_every_key_of_every_block_stands_in_one_of_them() -> None:
    missing = dict[tuple[str, str], str]()
    found = set[tuple[str, str]]()
    for kind, root in TASK_KINDS.items():
        written = {key for spec in specs(kind) for key in keys(spec)}
        # The names of exported fields and of columns with chats are the user's.
        written |= {re.sub(r"(fields|chat)\.[^.]+\.", r"\1.", key) for key in written}
        for path, block in walk_blocks(root):
            for name, field in block.model_fields.items():
                key = ".".join((*map(str, path), field.alias or name))
                if key in written:
                    found.add((_owner(block, name), name))
                elif not key.startswith(ELSEWHERE):
                    missing[_owner(block, name), name] = f"{kind}: {key}"
    assert [where for key, where in missing.items() if key not in found] == []


def _owner(block: type[BaseModel], name: str) -> str:
    """Return the class that says what the key is."""
    return next(each.__qualname__ for each in block.__mro__ if name in inspect.get_annotations(each))


def test_fault_35_no_training_without_data_and_no_reward_without_a_model() -> None:
    for kind in ("sft", "lora_sft", "dpo", "ppo"):
        for data in (None, {}):
            spec = whole(kind) | {"data": data}
            with pytest.raises(SpecError) as caught:
                load_task_spec(spec)
            assert any(fault.path == "spec.data" for fault in caught.value.faults)
    with pytest.raises(SpecError, match="reward_model"):
        load_task_spec({key: value for key, value in whole("ppo").items() if key != "reward_model"})


def test_ppo_as_the_public_template_has_it() -> None:
    spec = load_task_spec(
        {
            "taskType": "ppo",
            "resources": {"replicas": 1, "hardware": {"cpu": "16", "gpu": {"type": "any", "count": 1}}},
            "model": {"source": {"identifier": "m"}, "config": {"fp16": True, "device_map_auto": True}},
            "reward_model": {"identifier": "r", "type": "sentiment"},
            "data": {"prompts": ["a"] * 8},
            "training": {
                "learning_rate": "1.41e-5", "batch_size": 4, "mini_batch_size": 1, "gradient_accumulation_steps": 4,
                "steps": 50, "ppo_epochs": 4, "target_kl": 0.1, "seed": 42, "early_stopping": False,
                "optimize_cuda_cache": True, "save_model": True, "save_freq": 25, "log_with": None,
                "tracker_project_name": "p",
            },
            "generation": {"max_new_tokens": 256, "temperature": 0.7, "do_sample": True},
            "output": {
                "destination": {"type": "local"}, "artifacts": ["responses.json", "logs", "artifacts/checkpoints"],
            },
        }
    )  # fmt: skip
    assert isinstance(spec, PpoSpec)
    assert (spec.fp16, spec.training.saving_steps, spec.training.device_batch) == (True, 25, 4)
    assert spec.training.learning_rate == 1.41e-5


def test_nothing_is_replaced_in_python_code() -> None:
    code = "def main(inputs):\n    return f'${inputs} ${secret:KEY} $${other.result.x}'\n"
    document = yaml.safe_dump({"apiVersion": "tunefleet/v1", "spec": {"taskType": "python", "code": code}})
    (task,) = parse_workflow(document).tasks
    assert (task.raw["code"], task.depends_on) == (code, ())
    assert secrets_of(task.raw) == ()
    assert fill_secrets(task.raw, lambda name: "x")["code"] == resolve(task.raw, {})["code"] == code


def test_camel_case_and_snake_case_are_one() -> None:
    base = {"taskType": "inference", "model": {"source": {"identifier": "m"}}, "data": {"type": "list", "items": ["a"]}}
    camel = load_task_spec(base | {"inference": {"systemPrompt": "s", "maxTokens": 7, "presencePenalty": 1}})
    snake = load_task_spec(base | {"inference": {"system_prompt": "s", "max_tokens": 7, "presence_penalty": 1}})
    assert camel == snake
    assert isinstance(camel, InferenceTaskSpec)
    assert camel.inference.longest == 7


def test_a_source_of_an_exported_field_in_both_forms() -> None:
    spec = load_task_spec(whole("inference"))
    assert isinstance(spec, InferenceTaskSpec)
    assert spec.postprocess.jsonl_export is not None
    fields = spec.postprocess.jsonl_export.fields
    assert (fields["prompt"].origin, fields["response"].origin) == ("prompt", "output")
    assert (fields["reference"].source, fields["reference"].key) == ("metadata", "reference")


@pytest.mark.parametrize(
    ("spec", "shards"),
    [
        ({}, 1),
        ({"parallel": {"enabled": False, "max_shards": 3}}, 1),
        ({"parallel": {"enabled": True, "max_shards": 3}}, 3),
        ({"parallel": {"enabled": True}}, None),
        ({"resources": {"replicas": 1}}, 1),
        ({"resources": {"replicas": 4}}, 4),
        ({"resources": {"replicas": 4}, "parallel": {"enabled": True}}, 4),
    ],
)
def test_fault_32_replicas_and_parallel_say_how_many_shards(spec: dict[str, Any], shards: int | None) -> None:
    load_task_spec({"taskType": "echo", **spec})
    assert asked_shards(spec) == shards
