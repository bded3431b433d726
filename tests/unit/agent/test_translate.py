"""Configs of the document, in both spellings, to specs: honoured, warned about, or refused by name."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tunefleet.agent.translate import Defaults, translate
from tunefleet.errors import SpecError
from tunefleet.spec import load_task_spec

SOURCE = {"path": "rows.jsonl"}
GPU = Defaults(gpu=True, bf16=True)


def config(**blocks: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "model": {"name": "org/model"},
        "tokenizer": {"name": "org/model"},
        "training": {},
        "data": {},
    }
    return base | blocks


def refused(given: dict[str, Any], *words: str, defaults: Defaults = GPU) -> str:
    with pytest.raises(SpecError) as caught:
        translate(given, SOURCE, defaults)
    text = str(caught.value)
    assert all(word in text for word in words), text
    return text


def test_the_agents_own_spelling() -> None:
    found = translate(
        config(
            training={
                "num_train_epochs": 2,
                "per_device_train_batch_size": 6,
                "per_device_eval_batch_size": 3,
                "learning_rate": 1e-4,
                "warmup_steps": 7,
                "eval_steps": 20,
            },
            data={"text_field": "body", "max_seq_length": 99},
        ),
        SOURCE,
        Defaults(save_steps=11, logging_steps=3),
    )
    assert found.kind == "sft"
    assert found.warnings == ()
    spec = found.spec
    assert spec["data"] == {"path": "rows.jsonl", "text_field": "body", "eval": {"fraction": 0.2}}
    training = spec["training"]
    wanted = {"num_train_epochs": 2, "batch_size": 6, "learning_rate": 1e-4, "warmup_steps": 7, "max_seq_length": 99}
    assert training.items() >= wanted.items()
    assert training["eval_batch_size"] == 3
    assert (training["eval_strategy"], training["eval_steps"]) == ("steps", 20)
    assert (training["save_steps"], training["logging_steps"]) == (11, 3)


def test_the_documents_defaults() -> None:
    spec = translate(config(), SOURCE, GPU).spec
    assert spec["training"] == {
        "num_train_epochs": 3, "batch_size": 4, "learning_rate": 2e-5, "warmup_steps": 500, "max_seq_length": 512,
        "save_steps": 500, "logging_steps": 10, "eval_strategy": "no",
    }  # fmt: skip
    assert spec["data"]["eval"] == {"fraction": 0.2}
    assert load_task_spec(spec).training.seed == 42


PLATFORM = config(
    model={"name": "org/model", "trust_remote_code": True, "torch_dtype": "bfloat16", "device_map": "auto"},
    tokenizer={"name": "org/model", "trust_remote_code": True, "padding_side": "right"},
    training={
        "method": "sft", "use_lora": True, "num_epochs": 1, "batch_size": 2, "learning_rate": 3e-4,
        "lr_scheduler_type": "cosine", "warmup_ratio": 0.05, "warmup_steps": 0, "save_steps": 50, "save_total_limit": 3,
        "evaluation_strategy": "steps", "eval_steps": 25, "packing": True, "gradient_accumulation_steps": 8,
        "logging_steps": 5, "bf16": True, "fp16": False, "optim": "paged_adamw_8bit", "max_grad_norm": 0.3,
        "weight_decay": 0.01, "gradient_checkpointing": True, "max_length": 1024, "dataloader_num_workers": 2,
        "group_by_length": True,
        "lora_config": {"r": 8, "lora_alpha": 32, "lora_dropout": 0.1, "target_modules": ["q_proj", "v_proj"],
                        "bias": "none", "task_type": "CAUSAL_LM"},
        "quantization": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4", "bnb_4bit_compute_dtype": "bfloat16",
                         "bnb_4bit_use_double_quant": False},
    },
    data={"strategy": "chat", "generation_type": "real", "max_samples": 500, "train_split": 0.9, "eval_split": 0.1,
          "dataset_format": "chatml"},
    predictions={"enabled": True, "sample_count": 4, "sample_frequency": "eval"},
    evaluation={"metrics": ["loss"], "eval_steps": 25},
    tensorboard={"enabled": True, "log_dir": "./runs"},
    seed=7,
    provider="local",
)  # fmt: skip


def test_the_platforms_spelling_is_honoured_key_by_key() -> None:
    found = translate(PLATFORM, SOURCE, GPU)
    spec = load_task_spec(found.spec)
    assert found.kind == "lora_sft"
    training = spec.training
    assert (training.num_train_epochs, training.batch_size, training.gradient_accumulation_steps) == (1, 2, 8)
    assert (training.lr_scheduler_type, training.warmup_ratio, training.warmup_steps) == ("cosine", 0.05, 0)
    assert (training.save_steps, training.save_total_limit, training.eval_steps) == (50, 3, 25)
    assert (training.packing, training.logging_steps, training.max_seq_length) == (True, 5, 1024)
    assert (training.bf16, training.optim, training.max_grad_norm) == (True, "paged_adamw_8bit", 0.3)
    assert (training.weight_decay, training.gradient_checkpointing, training.seed) == (0.01, True, 7)
    assert (training.dataloader_num_workers, training.report_to) == (2, ("tensorboard",))
    assert (spec.lora.r, spec.lora.alpha, spec.lora.dropout) == (8, 32, 0.1)
    assert spec.lora.target_modules == ("q_proj", "v_proj")
    quantized = spec.quantized
    assert quantized is not None
    assert (quantized.load_in_4bit, quantized.quant_type, quantized.double_quant) == (True, "fp4", False)
    assert (spec.data.messages_field, spec.data.max_samples, spec.data.eval.fraction) == ("messages", 500, 0.1)
    assert (spec.predictions.sample_count, spec.predictions.sample_frequency) == (4, "eval")
    assert spec.model.transformers.dtype == "bfloat16"
    said = "\n".join(found.warnings)
    for key in ("group_by_length", "log_dir", "strategy", "generation_type", "padding_side", "trust_remote_code"):
        assert key in said
    assert len(found.warnings) == 6, said


@pytest.mark.parametrize("block", ["lora", "training.lora", "training.lora_config"])
@pytest.mark.parametrize(("alpha", "dropout"), [("alpha", "dropout"), ("lora_alpha", "lora_dropout")])
def test_an_adapter_in_each_of_its_places(block: str, alpha: str, dropout: str) -> None:
    lora = {"r": 4, alpha: 8, dropout: 0.0, "target_modules": "all-linear"}
    given = config(lora=lora) if block == "lora" else config(training={block.removeprefix("training."): lora})
    found = translate(given, SOURCE, GPU)
    assert found.kind == "lora_sft"
    assert found.spec["lora"] == {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear"}
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("where", "value", "bits"),
    [
        ("model.quantization", True, 8),
        ("model.quantization", "4bit", 4),
        ("model.quantization", {"bits": 4}, 4),
        ("model.quantization", {"load_in_8bit": True}, 8),
        ("training.quantization", {"load_in_4bit": True, "load_in_8bit": False}, 4),
        ("model.load_in_4bit", True, 4),
        ("training.load_in_8bit", True, 8),
    ],
)
def test_quantization_in_each_of_its_forms(where: str, value: Any, bits: int) -> None:
    given = config(training={"use_lora": True})
    block, key = where.split(".")
    given[block] = given[block] | {key: value}
    found = translate(given, SOURCE, GPU)
    assert found.spec["quantization"][f"load_in_{bits}bit"] is True
    assert found.warnings == ()
    given["training"]["use_lora"] = False
    refused(given, where, "quantised weights cannot be trained whole", "use_lora")


@pytest.mark.parametrize("method", ["dpo", "rlhf", "orpo"])
def test_other_methods_are_refused_by_name(method: str) -> None:
    refused(config(training={"method": method}), "config.training.method", method, "not available in this version")


def test_plain_text_is_learnt_as_a_whole() -> None:
    spec = load_task_spec(translate(config(training={"method": "cpt"}), SOURCE, GPU).spec)
    assert spec.data.shape.kind == "text"


def test_contradictions_name_their_key() -> None:
    refused(config(training={"num_epochs": 1, "num_train_epochs": 2}), "config.training.num_epochs", "contradicts")
    refused(config(training={"bf16": True, "fp16": True}), "config.training.fp16")
    refused(config(training={"max_length": 5}, data={"max_seq_length": 6}), "config.training.max_length")
    refused(config(tokenizer={"name": "other/one"}), "config.tokenizer.name", "own tokenizer")
    refused(config(training={"eval_steps": 5}, data={"eval_split": 0}), "config.data.eval_split")
    refused(config(training={"warmup_steps": 5, "warmup_ratio": 0.1}), "config.training.warmup_ratio")


def test_values_that_cannot_be_used_name_the_key_that_was_written() -> None:
    text = refused(
        config(training={"batch_size": 0, "optim": "lion", "lr_scheduler_type": "sawtooth", "num_epochs": "many"}),
        "config.training.batch_size",
        "config.training.optim",
        "config.training.lr_scheduler_type",
        "config.training.num_epochs",
    )
    assert "spec." not in text


WRONG: list[Any] = [True, -1, 10**400, "x", "", [], [{}], {}, {"name": []}]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_a_value_of_the_wrong_kind_is_refused_or_said_and_never_a_crash(wrong: Any) -> None:
    keys = {
        "model": ["name", "revision", "quantization"],
        "training": ["method", "optim", "quantization", "lora_config", "distributed", "eval_steps", "warmup_ratio"],
        "data": ["eval_split", "train_split", "dataset_format", "max_samples", "text_field"],
        "predictions": ["enabled", "sample_count"],
    }
    for block, names in keys.items():
        for name in names:
            given = config(**{block: {**({"name": "org/model"} if block == "model" else {}), name: wrong}})
            with contextlib.suppress(SpecError):
                translate(given, SOURCE, GPU)
    for part in (1.5e300, "2e400"):
        refused(config(data={"eval_split": part}), "config.data.eval_split")


def test_unknown_keys_are_said_and_have_no_effect() -> None:
    found = translate(config(training={"dreams": 1, "deep": {"er": 2}}, wish="x"), SOURCE, GPU)
    assert sorted(found.warnings) == [
        "config.training.deep.er is not known and has no effect.",
        "config.training.dreams is not known and has no effect.",
        "config.wish is not known and has no effect.",
    ]


@pytest.mark.parametrize(
    ("defaults", "wish", "precision"),
    [
        (GPU, {}, {}),
        (Defaults(gpu=True, bf16=False), {}, {"fp16": True}),
        (Defaults(gpu=True, bf16=False), {"bf16": True}, {"fp16": True}),
        (Defaults(gpu=True, bf16=True), {"fp16": True}, {"fp16": True}),
        (Defaults(gpu=True, bf16=True, mixed_precision=False), {"bf16": True}, {"bf16": False, "fp16": False}),
        (Defaults(), {"fp16": True, "bf16": False}, {}),
    ],
)
def test_precision_follows_the_machine(defaults: Defaults, wish: dict[str, bool], precision: dict[str, bool]) -> None:
    found = translate(config(training=wish), SOURCE, defaults)
    training = found.spec["training"]
    assert {name: training[name] for name in ("bf16", "fp16") if name in training} == precision
    dtype = found.spec["model"].get("transformers", {}).get("dtype")
    assert dtype == (None if defaults.mixed_precision else "float32")


def test_an_optimizer_that_needs_a_gpu_is_replaced_on_a_cpu_and_said() -> None:
    found = translate(config(training={"optim": "paged_adamw_8bit"}), SOURCE, Defaults())
    assert found.spec["training"]["optim"] == "adamw_torch"
    assert "paged_adamw_8bit" in found.warnings[0]


def test_a_dataset_with_splits_is_not_split_again() -> None:
    spec = translate(config(training={"eval_steps": 5}), SOURCE, GPU, splits=("train", "test")).spec
    assert spec["data"]["eval"] == {"split": "test"}


def test_code_of_a_model_runs_only_where_that_is_allowed() -> None:
    given = config(model={"name": "org/model", "trust_remote_code": True})
    assert "TUNEFLEET_ALLOW_CODE" in translate(given, SOURCE, GPU).warnings[0]
    allowed = translate(given, SOURCE, Defaults(allow_code=True))
    assert load_task_spec(allowed.spec).requires_code
    assert allowed.warnings == ()


def test_several_gpus() -> None:
    given = config(training={"distributed": {"enabled": True, "strategy": "ddp", "num_gpus": 1}})
    assert "resources" not in translate(given, SOURCE, GPU).spec
    for strategy, known in (("ddp", None), ("fsdp", "fsdp"), ("DeepSpeed", "deepspeed")):
        given = config(training={"distributed": {"enabled": True, "strategy": strategy, "num_gpus": 2}})
        found = translate(given, SOURCE, GPU)
        assert found.spec["resources"]["processes"] == 2
        assert found.spec["training"].get("parallelism") == known
        assert found.warnings == ()
    odd = config(training={"distributed": {"enabled": True, "strategy": "pipeline", "num_gpus": 2}})
    assert "'pipeline' has no effect" in translate(odd, SOURCE, GPU).warnings[0]
