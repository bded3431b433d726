"""A training that is spread over several devices: what torchrun, Transformers and DeepSpeed are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunefleet.errors import InputError, MachineError
from tunefleet.spec import TrainingTaskSpec, load_task_spec


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Hardware, KERNELS, Kernels, ArgumentsContext, base_model, deepspeed, assembly, parse_args, arguments
    global torchrun
    pytest.importorskip("torch")

    from torch.distributed.run import parse_args

    from tunefleet.workloads.common import base_model
    from tunefleet.workloads.distributed import torchrun
    from tunefleet.workloads.training import arguments
    from tunefleet.workloads.training.arguments import ArgumentsContext
    from tunefleet.workloads.training.model import assembly, deepspeed
    from tunefleet.workloads.training.model.hardware import Hardware, Kernels

    KERNELS = Kernels("bfloat16", "sdpa", liger=False, varlen=False)


pytestmark = pytest.mark.torch


def training(**block: Any) -> TrainingTaskSpec:
    spec = load_task_spec(
        {
            "taskType": "sft",
            "model": {"source": {"identifier": "m"}},
            "data": {"prompts": ["a"]},
            "resources": {"hardware": {"gpu": {"count": 2}}},
            "training": block,
        }
    )
    assert isinstance(spec, TrainingTaskSpec)
    return spec


def told(monkeypatch: pytest.MonkeyPatch, spec: TrainingTaskSpec, **options: Any) -> dict[str, Any]:
    """Return what Transformers is given; it would look for the packages and devices that are not here."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(arguments, "SFTConfig", lambda **words: given.update(words))
    setting = ArgumentsContext(Hardware("cuda"), KERNELS, Path("out"), "name", **options)
    arguments.supervised_arguments(spec, setting)
    return given


def test_torchrun_is_told_how_many_ranks_and_to_stay_on_this_machine() -> None:
    parsed = parse_args(torchrun.arguments(Path("/jobs/task-1"), 4))
    assert (parsed.nproc_per_node, parsed.standalone, parsed.local_addr) == ("4", True, "127.0.0.1")
    assert (parsed.module, parsed.training_script) == (True, "tunefleet.workloads.entrypoint")
    assert parsed.training_script_args == ["/jobs/task-1"]


def test_what_transformers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = told(monkeypatch, training())
    assert (plain["fsdp"], plain["deepspeed"], plain["ddp_find_unused_parameters"]) == (None, None, False)
    looking = told(monkeypatch, training(ddp_find_unused_parameters=True))
    assert looking["ddp_find_unused_parameters"] is True
    sharded = told(monkeypatch, training(parallelism="fsdp"), parallelism="fsdp")
    assert (sharded["fsdp"], sharded["fsdp_config"]["state_dict_type"]) == (True, "SHARDED_STATE_DICT")
    config = {"zero_optimization": {"stage": 2}}
    zero = told(monkeypatch, training(zero_stage=2), parallelism="deepspeed", deepspeed=config)
    assert (zero["deepspeed"], zero["fsdp"]) == (config, None)


@pytest.mark.parametrize(
    ("block", "stage"), [({}, 2), ({"zero_stage": 3}, 3), ({"auto_deepspeed_stage": 7}, 3), ({"zero_stage": 0}, 1)]
)
def test_our_own_configuration_of_deepspeed(block: dict[str, Any], stage: int) -> None:
    found = deepspeed.configuration(training(parallelism="deepspeed", **block).training, "bfloat16", {})
    assert found["zero_optimization"]["stage"] == stage
    assert (found["bf16"], found["fp16"]) == ({"enabled": True}, {"enabled": False})
    assert found["train_micro_batch_size_per_gpu"] == found["gradient_accumulation_steps"] == "auto"
    gathers = found["zero_optimization"].get("stage3_gather_16bit_weights_on_model_save", False)
    assert gathers is (stage == 3), "else a model of stage 3 would be saved without its weights"


def test_a_configuration_of_the_users_is_filled_up_and_not_changed(tmp_path: Path) -> None:
    given = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}, "fp16": {"enabled": False}}
    spec = training(deepspeed=given)
    found = deepspeed.configuration(spec.training, "float32", {})
    assert {key: found[key] for key in given} == {**given, "train_micro_batch_size_per_gpu": "auto"}
    assert (found["gradient_clipping"], found["bf16"]) == ("auto", {"enabled": False})
    assert spec.training.deepspeed == given
    as_text = training(deepspeed=json.dumps(given))
    assert deepspeed.configuration(as_text.training, "float32", {}) == found
    file = tmp_path / "zero.json"
    file.write_text(json.dumps(given))
    named = training(deepspeed="./zero.json")
    assert deepspeed.configuration(named.training, "float32", {"training.deepspeed": str(file)}) == found


def test_a_configuration_in_a_file_trains_the_batches_of_the_document(tmp_path: Path) -> None:
    file = tmp_path / "zero.json"
    file.write_text(json.dumps({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1}))
    block = training(deepspeed=str(file), batch_size=4).training
    assert deepspeed.configuration(block, "float32", {})["train_micro_batch_size_per_gpu"] == "auto"
    halved = block.model_copy(update={"batch_size": 2, "gradient_accumulation_steps": 2})
    deepspeed.configuration(halved, "float32", {})
    with pytest.raises(
        InputError, match="a batch size of 4 with 1 gradient accumulation steps, but `training` sets 8 and 1"
    ):
        deepspeed.configuration(block.model_copy(update={"batch_size": 8}), "float32", {})


@pytest.mark.parametrize("content", ["{", "[1]", None])
def test_a_file_that_is_no_configuration(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "zero.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InputError, match=r"training\.deepspeed"):
        deepspeed.configuration(training(deepspeed=str(file)).training, "float32", {})


def test_without_deepspeed_the_training_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MachineError, match="deepspeed is not installed"):
        deepspeed.require()


@pytest.mark.parametrize(("spread", "placed"), [(True, "auto"), (False, None)])
def test_layers_are_laid_on_all_devices_of_one_process(
    spread: bool, placed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def load(path: str, **options: Any) -> object:
        given.update(options)
        return object()

    monkeypatch.setattr(assembly.AutoModelForCausalLM, "from_pretrained", load)
    assembly.load_model(base_model.Source("m", "folder"), KERNELS, spread=spread)
    assert given.get("device_map") == placed
