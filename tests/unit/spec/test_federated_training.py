"""`spec.federation`: what a federated training is made of, and what cannot be one."""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.errors import SpecError
from tunefleet.spec import FederableTaskSpec, asked_shards, dump_task_spec, load_task_spec

BASE: dict[str, Any] = {
    "taskType": "lora_sft",
    "model": {"source": {"identifier": "m"}},
    "data": {"path": "./a.csv", "text_field": "t"},
}
PAIRS = {"path": "./a.jsonl", "prompt_column": "p", "chosen_column": "c", "rejected_column": "r"}


def faults(**changes: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_task_spec({**BASE, **changes})
    return [f"{fault.path.removeprefix('spec.')}: {fault.message}" for fault in caught.value.faults]


def test_a_number_of_workers_is_enough() -> None:
    spec = load_task_spec({**BASE, "federation": {"workers": 3}})
    assert isinstance(spec, FederableTaskSpec)
    assert spec.federation is not None
    assert (spec.federation.split.by, spec.federation.min_workers, spec.federation.patience_s) == ("iid", 2, 600.0)
    assert asked_shards(dump_task_spec(spec)) == 3
    part = {**dump_task_spec(spec), "shard": {"index": 0, "total": 3}}
    assert asked_shards(part) == 1, "a part is not split again"


@pytest.mark.parametrize("written", ["iid", {"by": "iid"}])
def test_a_split_may_be_named_alone(written: Any) -> None:
    spec = load_task_spec({**BASE, "federation": {"workers": 2, "split": written}})
    assert dump_task_spec(spec)["federation"]["split"] == {"by": "iid"}


@pytest.mark.parametrize("kind", ["dpo", "orpo"])
def test_pairs_are_federated_with_an_adapter_and_not_without(kind: str) -> None:
    document = {"taskType": kind, "data": PAIRS, "federation": {"workers": 2}}
    assert load_task_spec({**BASE, **document, "lora": {}}).task_type == kind
    assert faults(**document) == ["federation: averages adapters, but this task trains none"]


@pytest.mark.parametrize(
    ("federation", "fault"),
    [
        ({}, "federation.workers: is required"),
        ({"workers": 1}, "federation.workers: must be at least 2"),
        ({"workers": 2, "min_workers": 3}, "federation.min_workers: is greater than workers, which is 2"),
        (
            {"workers": 9, "strategy": {"name": "krum"}},
            "federation.min_workers: is too small for krum, which needs 5 updates",
        ),
        ({"workers": 2, "split": "column"}, "federation.split.column: is required with by: column"),
        (
            {"workers": 2, "split": {"by": "dirichlet", "column": "c"}},
            "federation.split.alpha: is required with by: dirichlet",
        ),
        (
            {"workers": 2, "split": {"by": "iid", "column": "c"}},
            "federation.split.column: has no effect with by: iid",
        ),
        (
            {"workers": 2, "strategy": {"name": "fedavg_exact", "output": "residual"}},
            "federation.strategy.output: leaves a residual for the base model, which is frozen in federated training",
        ),
        (
            {"workers": 2, "strategy": {"name": "fedavg", "mu": 0.1}},
            "federation.strategy.mu: has no effect with the strategy fedavg",
        ),
    ],
)
def test_what_a_federation_cannot_be_is_said_by_name(federation: dict[str, Any], fault: str) -> None:
    assert any(found.startswith(fault) for found in faults(federation=federation)), faults(federation=federation)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"data": {**BASE["data"], "streaming": True}, "training": {"max_steps": 3}},
            "federation: cannot partition streamed rows",
        ),
        ({"training": {"packing": True}}, "training.max_steps: is required with packing in a federation"),
        (
            {"training": {"parallelism": "fsdp"}},
            "federation: needs the full adapter in each process, but fsdp shards it",
        ),
        (
            {"training": {"deepspeed": "./zero.json"}},
            "federation: needs the full adapter in each process, but deepspeed shards it",
        ),
        ({"lora": {"use_dora": True}}, "lora.use_dora: cannot be averaged in a federation"),
        ({"lora": {"bias": "all"}}, "lora.bias: cannot be averaged in a federation"),
        (
            {"on_stall": "restart"},
            "federation: lets a part wait for 600 s, but limits.stall_after_s ends it earlier",
        ),
        ({"trainer": "unsloth"}, "federation: is not supported by trainer: unsloth"),
    ],
)
def test_trainings_that_no_federation_can_do_are_refused(changes: dict[str, Any], fault: str) -> None:
    assert fault in faults(federation={"workers": 2}, **changes)


@pytest.mark.parametrize("kind", ["sft", "reward", "grpo", "rloo", "ppo", "inference"])
def test_other_kinds_refuse_it_and_say_which_do(kind: str) -> None:
    found = faults(taskType=kind, federation={"workers": 2})
    assert any(each == "federation: is only for lora_sft, dpo, kto and orpo tasks" for each in found), found


def test_a_part_is_the_servers_to_make() -> None:
    assert faults(shard={"index": 0, "total": 2}) == ["shard: is only for parts of a federation"]
