"""Configs of the document, in both spellings, to specs: honoured, warned about, or refused by name."""

from __future__ import annotations

import contextlib
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from tunefleet.agent.translate import Defaults, translate
from tunefleet.client import local_data
from tunefleet.errors import SpecError
from tunefleet.schemas.training_protocol.training import PolledJob
from tunefleet.spec import TASK_KINDS, load_task_spec

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
    refused(given, where, "quantized weights cannot be fully fine-tuned", "use_lora")


def paired(method: str, data: dict[str, Any] | None = None, **training: Any) -> dict[str, Any]:
    return config(training={"method": method, **training}, data=data or {})


@pytest.mark.parametrize(
    ("method", "kinds"),
    [("rlhf", "ppo or grpo"), ("ppo", "ppo"), ("grpo", "grpo"), ("rloo", "rloo"), ("kto", "kto"), ("reward", "reward")],
)
def test_methods_that_a_config_cannot_say_are_refused_with_the_kind_that_does_it(method: str, kinds: str) -> None:
    text = refused(paired(method), "config.training.method", repr(method), f"a task of kind {kinds} to a server")
    (page,) = re.findall(r"docs/\S+\.md", text)
    shown = (Path(__file__).parents[3] / page).read_text()
    assert all(f"`{kind}`" in shown for kind in kinds.split(" or "))
    assert set(kinds.split(" or ")) <= set(TASK_KINDS), "the sentence names kinds that there are"
    refused(paired("dreaming"), "'dreaming' is not known", "sft, cpt, dpo or orpo")


@pytest.mark.parametrize(("method", "rate"), [("dpo", 5e-7), ("orpo", 8e-6)])
def test_pairs_are_of_the_methods_own_kind_with_and_without_an_adapter(method: str, rate: float) -> None:
    found = translate(paired(method), SOURCE, GPU)
    assert (found.kind, found.warnings) == (method, ())
    spec = load_task_spec(found.spec)
    assert (spec.task_type, spec.adapter, spec.data.columns) == (method, None, ("prompt", "chosen", "rejected"))
    assert (spec.training.beta, spec.training.max_prompt_length, spec.training.learning_rate) == (0.1, None, rate)
    assert spec.data.eval.fraction == 0.2

    adapted = translate(paired(method, use_lora=True), SOURCE, GPU)
    assert adapted.kind == method
    assert load_task_spec(adapted.spec).adapter.r == load_task_spec({**adapted.spec, "lora": {}}).adapter.r
    turned_off = translate(paired(method, use_lora=False, lora_config={"r": 4}), SOURCE, GPU)
    assert load_task_spec(turned_off.spec).adapter is None
    assert "use_lora is false" in turned_off.warnings[0]


PAIRS = PLATFORM | {
    "training": {
        **PLATFORM["training"], "packing": False, "learning_rate": 5e-6, "beta": 0.3, "max_prompt_length": 256,
    },
    "data": {"dataset_format": "dpo", "prompt_column": "question", "chosen_column": "good", "rejected_field": "bad",
             "separator": "\n", "max_samples": 500, "train_split": 0.9},
    "predictions": {"enabled": False},
    "evaluation": {"metrics": ["loss", "accuracy"], "eval_steps": 25},
}  # fmt: skip


@pytest.mark.parametrize("method", ["dpo", "orpo"])
def test_a_config_of_pairs_is_honoured_key_by_key(method: str) -> None:
    given = PAIRS | {"training": {**PAIRS["training"], "method": method}}
    found = translate(given, SOURCE, GPU)
    spec = load_task_spec(found.spec)
    assert found.kind == method
    training = spec.training
    assert (training.beta, training.max_prompt_length, training.max_seq_length) == (0.3, 256, 1024)
    assert (training.learning_rate, training.batch_size, training.gradient_accumulation_steps) == (5e-6, 2, 8)
    assert (training.eval_strategy, training.eval_steps, training.saving_steps) == ("steps", 25, 50)
    assert (spec.adapter.r, spec.adapter.alpha) == (8, 32)
    assert (spec.quantized.load_in_4bit, spec.quantized.quant_type) == (True, "fp4")
    assert (spec.data.columns, spec.data.separator) == (("question", "good", "bad"), "\n")
    assert (spec.data.max_samples, spec.data.eval.fraction) == (500, 0.1)
    said = "\n".join(found.warnings)
    for key in ("group_by_length", "log_dir", "padding_side", "trust_remote_code"):
        assert key in said
    assert len(found.warnings) == 4, said


@pytest.mark.parametrize("method", ["dpo", "orpo"])
@pytest.mark.parametrize(
    ("block", "key", "value", "harmless"),
    [
        ("training", "packing", True, False),
        ("training", "neftune_noise_alpha", 5, 0),
        ("training", "use_liger_kernel", True, False),
        ("training", "completion_only_loss", False, True),
        ("training", "early_stopping_patience", 3, 0),
        ("training", "ppo_epochs", 4, None),
        ("data", "text_field", "text", None),
        ("data", "response_column", "response", None),
        ("data", "messages_field", "messages", None),
        ("data", "dataset_format", "alpaca", "preference"),
        ("evaluation", "metrics", ["perplexity"], ["eval_loss"]),
        ("predictions", "enabled", True, False),
    ],
)
def test_what_only_a_supervised_training_has_is_said_of_pairs(
    method: str, block: str, key: str, value: Any, harmless: Any
) -> None:
    for wish, count in ((value, 1), (harmless, 0)):
        given = paired(method)
        given[block] = {**given.get(block, {}), key: wish}
        found = translate(given, SOURCE, GPU)
        assert [f"config.{block}" in sentence for sentence in found.warnings] == [True] * count, found.warnings
        assert load_task_spec(found.spec).task_type == method


def test_what_belongs_to_another_method_is_said() -> None:
    of_dpo = {"loss_type": "robust", "label_smoothing": 0.1, "precompute_ref_log_probs": True}
    training = load_task_spec(translate(paired("dpo", **of_dpo), SOURCE, GPU).spec).training
    assert {name: getattr(training, name) for name in of_dpo} == of_dpo
    for method, training_keys, data_keys in (
        ("orpo", of_dpo, {}),
        ("sft", {**of_dpo, "beta": 0.1, "max_prompt_length": 9}, {"chosen_column": "a", "rejected_column": "b"}),
    ):
        said = translate(paired(method, data_keys, **training_keys), SOURCE, GPU).warnings
        names = [f"training.{name}" for name in training_keys] + [f"data.{name}" for name in data_keys]
        wanted = [f"config.{name} belongs to another training method and has no effect." for name in names]
        assert sorted(said) == sorted(wanted)
    (sentence,) = translate(paired("sft", {"dataset_format": "dpo"}), SOURCE, GPU).warnings
    assert "belongs to dpo and orpo" in sentence


def test_faults_of_pairs_name_the_key_that_was_written() -> None:
    text = refused(
        paired("dpo", {"chosen_field": ""}, beta=0, max_prompt_length="long", load_in_4bit=True),
        "config.training.beta",
        "config.training.max_prompt_length",
        "config.data.chosen_field",
        "config.training.load_in_4bit: needs LoRA: quantized weights cannot be fully fine-tuned",
    )
    assert "spec." not in text
    both = {"chosen_field": "a", "chosen_column": "b"}
    refused(paired("orpo", both), "config.data.chosen_field", "contradicts data.chosen_column")
    refused(paired("dpo", {"eval_split": 0}, eval_steps=5), "config.data.eval_split")


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
        "training": [
            "method",
            "optim",
            "quantization",
            "lora_config",
            "distributed",
            "eval_steps",
            "warmup_ratio",
            "beta",
        ],
        "data": ["eval_split", "train_split", "dataset_format", "max_samples", "text_field", "chosen_column"],
        "predictions": ["enabled", "sample_count"],
    }
    for block, names in keys.items():
        for name, method in itertools.product(names, ("sft", "dpo")):
            blocks = {"model": {"name": "org/model"}, "training": {"method": method}}
            blocks[block] = {**blocks.get(block, {}), name: wrong}
            given = config(**blocks)
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


def test_the_usual_columns_of_alpaca_are_usual_for_a_job_of_an_agent(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"instruction": "Add.", "input": "1 2", "output": "3"}\n')
    found = translate(config(), {"path": str(rows)}, GPU)
    local_data.check_file(load_task_spec(found.spec), "data.path", rows)


def test_a_job_without_a_time_is_taken() -> None:
    job = PolledJob.model_validate({"id": "j", "model_name": "m", "dataset_path": "d", "config": {}})
    assert job.created_at is None
