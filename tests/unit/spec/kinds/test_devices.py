"""Which GPUs a training takes, how many processes it has, and how they share the work."""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.errors import SpecError
from tunefleet.spec import Devices, SftSpec, load_task_spec
from tunefleet.spec.options.served_model import tensor_parallel_size


def training(gpu: dict[str, Any] | None = None, **block: Any) -> dict[str, Any]:
    hardware = {} if gpu is None else {"gpu": gpu}
    return {
        "taskType": "sft",
        "model": {"source": {"identifier": "m"}},
        "data": {"prompts": ["a"]},
        "resources": {"hardware": hardware},
        "training": block,
    }


def load(spec: dict[str, Any]) -> SftSpec:
    found = load_task_spec(spec)
    assert isinstance(found, SftSpec)
    return found


@pytest.mark.parametrize(
    ("gpu", "block", "devices"),
    [
        (None, {}, Devices(1, optional=True)),
        ({}, {}, Devices(1)),
        ({"count": 1}, {}, Devices(1)),
        ({"count": 4}, {}, Devices(4)),
        ({"count": 0}, {}, Devices(0)),
        (None, {"allow_multi_gpu": True}, Devices(1, optional=True, everything=True)),
        ({"type": "A100"}, {"allow_multi_gpu": True}, Devices(1, everything=True)),
        ({"count": 2}, {"allow_multi_gpu": True}, Devices(2)),
        (None, {"allow_multi_gpu": False}, Devices(1, optional=True)),
        (None, {"visible_devices": "0,1"}, Devices(2, indices=(0, 1))),
        (None, {"visible_devices": [2, 5], "allow_multi_gpu": False}, Devices(1, indices=(2, 5))),
        ({"count": 2}, {"visible_devices": "0,1,2"}, Devices(2, indices=(0, 1, 2))),
        ({"count": 2}, {"visible_devices": "0,1", "allow_multi_gpu": True}, Devices(2, indices=(0, 1))),
        (None, {"primary_gpu": 3}, Devices(1, indices=(3,), primary=3)),
        ({"count": 2}, {"primary_gpu": 1}, Devices(2, primary=1)),
        (None, {"allow_multi_gpu": True, "nproc_per_node": 3}, Devices(3)),
    ],
)
def test_which_gpus(gpu: dict[str, Any] | None, block: dict[str, Any], devices: Devices) -> None:
    assert load(training(gpu, **block)).devices == devices


@pytest.mark.parametrize(
    ("gpu", "block", "given", "processes"),
    [
        (None, {}, 0, 1),
        (None, {}, 1, 1),
        ({"count": 2}, {}, 2, 2),
        (None, {"allow_multi_gpu": True}, 0, 1),
        (None, {"allow_multi_gpu": True}, 8, 8),
        ({"count": 2}, {"nproc_per_node": 2}, 2, 2),
        ({"count": 0}, {"nproc_per_node": 3}, 0, 3),
        ({"count": 4}, {"parallelism": "device_map"}, 4, 1),
    ],
)
def test_fault_28_processes_follow_from_the_gpus_that_the_task_was_given(
    gpu: dict[str, Any] | None, block: dict[str, Any], given: int, processes: int
) -> None:
    assert load(training(gpu, **block)).processes_on(given) == processes


@pytest.mark.parametrize(
    ("block", "alone", "together"),
    [
        ({}, "ddp", "ddp"),
        ({"parallelism": "fsdp"}, "ddp", "fsdp"),
        ({"parallelism": "deepspeed"}, "deepspeed", "deepspeed"),
        ({"deepspeed": {"zero_optimization": {"stage": 3}}}, "deepspeed", "deepspeed"),
        ({"deepspeed": "zero.json"}, "deepspeed", "deepspeed"),
        ({"auto_deepspeed": True}, "ddp", "deepspeed"),
        ({"auto_deepspeed_stage": 3}, "ddp", "deepspeed"),
        ({"zero_stage": 1}, "ddp", "deepspeed"),
        ({"parallelism": "device_map"}, "device_map", "device_map"),
    ],
)
def test_how_the_work_is_shared(block: dict[str, Any], alone: str, together: str) -> None:
    spec = load(training({"count": 2}, **block))
    assert (spec.training.strategy(1), spec.training.strategy(2)) == (alone, together)


def test_precision_wherever_it_was_written() -> None:
    zero = {"bf16": {"enabled": True}, "fp16": {"enabled": False}}
    assert (load(training(deepspeed=zero)).bf16, load(training(deepspeed=zero)).fp16) == (True, False)
    assert load(training(deepspeed={"bf16": {"enabled": "auto"}})).bf16 is None
    assert load(training(bf16=False)).bf16 is False
    assert load(training()).bf16 is None


@pytest.mark.parametrize(
    ("gpu", "block", "path", "message"),
    [
        ({"count": 2}, {"allow_multi_gpu": False}, "training.allow_multi_gpu", "contradicts resources.hardware.gpu"),
        ({"count": 3}, {"visible_devices": "0,1"}, "training.visible_devices", "lists 2 devices"),
        ({"count": 0}, {"visible_devices": "0"}, "training.visible_devices", "gpu.count: 0"),
        ({"count": 0}, {"primary_gpu": 0}, "training.primary_gpu", "gpu.count: 0"),
        (None, {"visible_devices": "0,1", "primary_gpu": 2}, "training.primary_gpu", "is not one of visible_devices"),
        (None, {"visible_devices": "0,0"}, "training.visible_devices", "lists a device twice"),
        (None, {"visible_devices": ""}, "training.visible_devices", "must be a list of device indices"),
        (None, {"visible_devices": [-1]}, "training.visible_devices", "must be a list of device indices"),
        (None, {"nproc_per_node": 2}, "training.nproc_per_node", "needs the devices of its processes"),
        ({"count": 4}, {"nproc_per_node": 2}, "training.nproc_per_node", "must equal the number of GPUs, which is 4"),
        (None, {"visible_devices": "0,1,2", "nproc_per_node": 2}, "training.nproc_per_node", "which is 3"),
        ({"count": 1}, {"parallelism": "fsdp"}, "training.parallelism", "needs several processes"),
        ({"count": 0}, {"parallelism": "deepspeed"}, "training.parallelism", "deepspeed needs GPUs"),
        ({"count": 0}, {"deepspeed": "zero.json"}, "training.deepspeed", "deepspeed needs GPUs"),
        ({"count": 0}, {"parallelism": "device_map"}, "training.parallelism", "device_map needs GPUs"),
        ({"count": 2}, {"parallelism": "device_map", "nproc_per_node": 2}, "training.nproc_per_node", "one process"),
        (None, {"parallelism": "ddp", "zero_stage": 2}, "training.parallelism", "contradicts the DeepSpeed keys"),
        (None, {"zero_stage": 2, "auto_deepspeed_stage": 2}, "training.zero_stage", "is an alias of"),
        (None, {"zero_stage": 2, "deepspeed": {"a": 1}}, "training.deepspeed", "already sets the stage"),
        (None, {"deepspeed": "{x"}, "training.deepspeed", "is not valid JSON"),
        (None, {"deepspeed": {"train_micro_batch_size_per_gpu": 3}},
         "training.deepspeed.train_micro_batch_size_per_gpu", "contradicts training.batch_size: 2"),
        (None, {"deepspeed": {"bf16": {"enabled": True}}, "bf16": False}, "training.deepspeed.bf16.enabled",
         "contradicts training.bf16: false"),
        (None, {"deepspeed": {"zero_optimization": {"stage": 4}}}, "training.deepspeed.zero_optimization", "0 to 3"),
        ({"count": 2}, {"parallelism": "fsdp", "ddp_find_unused_parameters": True},
         "training.ddp_find_unused_parameters", "is only for ddp"),
    ],
)  # fmt: skip
def test_wishes_that_contradict_each_other(
    gpu: dict[str, Any] | None, block: dict[str, Any], path: str, message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        load_task_spec(training(gpu, **block))
    (fault,) = caught.value.faults
    assert fault.path == f"spec.{path}"
    assert message in fault.message


@pytest.mark.parametrize(
    ("asked", "gpus", "size"), [(None, 0, 1), (None, 1, 1), (None, 4, 4), (2, 4, 2), (4, 2, 2), (1, 8, 1), (3, 0, 1)]
)
def test_layers_are_shared_over_all_gpus_that_the_task_was_given(asked: int | None, gpus: int, size: int) -> None:
    assert tensor_parallel_size(asked, gpus) == size


_MODEL = {"source": {"identifier": "m"}}


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ({"taskType": "inference", "model": _MODEL, "data": {"type": "list", "items": ["a"]}}, ()),
        (
            {"taskType": "inference", "model": {**_MODEL, "vllm": {}}, "data": {"type": "list", "items": ["a"]}},
            ("vllm",),
        ),
        ({"taskType": "sft", "model": _MODEL, "data": {"prompts": ["a"]}}, ()),
        ({"taskType": "sft", "model": _MODEL, "data": {"prompts": ["a"]}, "trainer": "axolotl"}, ("axolotl",)),
        ({"taskType": "sft", "model": _MODEL, "data": {"prompts": ["a"]}, "trainer": "mine:train"}, ()),
        ({"taskType": "command", "command": ["true"], "environment": "unsloth"}, ("unsloth",)),
        ({"taskType": "evaluate", "model": _MODEL, "evaluations": [{"type": "lm_eval", "tasks": ["a"]}]}, ("lm-eval",)),
    ],
)
def test_which_environments_a_worker_must_have(spec: dict[str, Any], names: tuple[str, ...]) -> None:
    assert load_task_spec(spec).environments == names


def test_an_inference_takes_no_gpu_if_it_must_not() -> None:
    base = {"taskType": "inference", "model": {"source": {"identifier": "m"}}, "data": {"type": "list", "items": ["a"]}}
    assert load_task_spec(base | {"enforce_cpu": True}).devices == Devices(0)
    assert load_task_spec(base).devices == Devices(1, optional=True)
    assert load_task_spec(base | {"resources": {"hardware": {"gpu": {"count": 2}}}}).devices == Devices(2)
