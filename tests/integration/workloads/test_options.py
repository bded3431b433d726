"""Each option of a training by its effect, not by its value."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.libraries import required
from tunefleet.analysis.dataset.shapes import Recognized
from tunefleet.spec import TrainingData
from tunefleet.workloads import assets
from tunefleet.workloads.data.formats import Shape


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global AutoModelForCausalLM, Encoder, Trainer, TrainerCallback, base_model, integration_utils
    global open_portions, pack, program, tokenize, torch
    pytest.importorskip("torch")

    import torch
    from transformers import AutoModelForCausalLM, TrainerCallback
    from transformers.integrations import integration_utils

    from tunefleet.workloads.common import base_model
    from tunefleet.workloads.data.sources import open_portions
    from tunefleet.workloads.data.tokenization import Encoder, tokenize
    from tunefleet.workloads.training import run as program
    from tunefleet.workloads.training.streaming import pack
    from tunefleet.workloads.training.trainer import Trainer


pytestmark = [pytest.mark.proof, pytest.mark.torch]
SFT = {"taskType": "sft", "lora": None}


@pytest.fixture
def trainers(monkeypatch: pytest.MonkeyPatch) -> list[Trainer]:
    """The trainers that the recipe has built, to look at what they really had."""
    built: list[Trainer] = []

    class Kept(Trainer):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            built.append(self)

    monkeypatch.setattr(program, "Trainer", Kept)
    return built


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def test_accumulated_gradients_equal_a_large_batch(train: Any) -> None:
    # Batches of rows of different lengths: a mean of the micro-batches' means would differ.
    large = train({**SFT, "training": {"batch_size": 4, "optim": "sgd", "learning_rate": 0.5, "max_steps": 3}})
    small = train(
        {
            **SFT,
            "training": {
                "batch_size": 1,
                "gradient_accumulation_steps": 4,
                "optim": "sgd",
                "learning_rate": 0.5,
                "max_steps": 3,
            },
        }
    )
    assert distance(large.weights(), small.weights()) < 1e-5
    assert large.result["used"]["batch_size"] == small.result["used"]["batch_size"] == 4


def test_the_same_seed_gives_the_same_weights_and_another_does_not(train: Any) -> None:
    dropout = {"lora": {"dropout": 0.3}}
    first, again, other = (train({**dropout, "training": {"seed": seed}}).weights() for seed in (1, 1, 2))
    assert distance(first, again) == 0.0
    assert distance(first, other) > 0.0


def test_dropout_changes_the_training(train: Any) -> None:
    assert distance(train().weights(), train({"lora": {"dropout": 0.5}}).weights()) > 0.0


@pytest.mark.parametrize(
    ("options", "curve"),
    [
        ({"lr_scheduler_type": "linear"}, [1.0, 0.75, 0.5, 0.25]),
        ({"lr_scheduler_type": "constant"}, [1.0] * 4),
        ({"lr_scheduler_type": "linear", "warmup_steps": 2}, [0.0, 0.5, 1.0, 0.5]),
        ({"lr_scheduler_type": "linear", "warmup_ratio": 0.5}, [0.0, 0.5, 1.0, 0.5]),
        ({"lr_scheduler_type": "cosine"}, [0.5 * (1 + math.cos(math.pi * step / 4)) for step in range(4)]),
    ],
)
def test_the_learning_rate_follows_its_curve(options: dict[str, Any], curve: list[float], train: Any) -> None:
    ended = train({"training": options, "data": {"eval": None}})
    assert ended.series("learning_rate") == pytest.approx([1e-2 * part for part in curve])


@pytest.mark.parametrize(
    ("name", "kind"),
    [(None, "AdamW"), ("adamw_torch", "AdamW"), ("adafactor", "Adafactor"), ("sgd", "SGD"), ("adamw_8bit", "AdamW")],
)
def test_the_optimizer_is_the_one_named(name: str | None, kind: str, train: Any, trainers: list[Trainer]) -> None:
    ended = train({"training": {"optim": name, "max_steps": 2}, "data": {"eval": None}})
    assert ended.result["used"]["optimizer"] == kind
    assert ended.result["used"]["optimizer_fused"] is (name is None)
    optimizer = trainers[0].optimizer.optimizer
    assert ("bitsandbytes" in type(optimizer).__module__) is (name == "adamw_8bit")


def test_gradients_are_clipped(train: Any) -> None:
    options = {"optim": "sgd", "learning_rate": 1.0, "max_steps": 1}
    base = AutoModelForCausalLM.from_pretrained(train.model).state_dict()
    for limit, moved in ((1e-3, 1e-3), (1e-2, 1e-2)):
        trained = train({**SFT, "training": {**options, "max_grad_norm": limit}}).weights()
        change = math.sqrt(sum(float((trained[name] - base[name]).pow(2).sum()) for name in trained))
        assert change == pytest.approx(moved, rel=0.02)


def test_weights_decay(train: Any) -> None:
    def size(decay: float) -> float:
        options = {"optim": "adamw_torch", "learning_rate": 1e-2, "weight_decay": decay}
        weights = train({**SFT, "training": options, "data": {"eval": None}}).weights()
        return sum(float(value.pow(2).sum()) for name, value in weights.items() if "norm" not in name)

    # Four steps whose rate falls from 1e-2 take away 12 % of every weight, gradients apart.
    assert size(5.0) < 0.9 * size(0.0)


def test_checkpointing_activations_changes_memory_and_not_the_weights(train: Any, trainers: list[Trainer]) -> None:
    plain = train({**SFT, "training": {"gradient_checkpointing": False}})
    saved = train({**SFT, "training": {"gradient_checkpointing": True}})
    assert [trainer.model.is_activation_checkpointing for trainer in trainers] == [False, True]
    assert distance(plain.weights(), saved.weights()) < 1e-6


def test_noise_on_the_embeddings_changes_the_training(train: Any) -> None:
    plain, noisy = train(), train({"training": {"neftune_noise_alpha": 50.0}})
    assert plain.series("loss")[0] != noisy.series("loss")[0]
    # The noise is for training only.
    assert plain.result["held_out"]["loss_before"] == noisy.result["held_out"]["loss_before"]


def test_evaluations_have_a_batch_of_their_own(train: Any, trainers: list[Trainer]) -> None:
    losses = [train({"training": {"eval_batch_size": size}}).result["held_out"]["loss_before"] for size in (None, 3)]
    assert [trainer.args.per_device_eval_batch_size for trainer in trainers] == [8, 3]
    # The held-out loss is a mean over tokens: how they are batched does not matter.
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_bf16_on_a_cpu_when_asked_for(train: Any, trainers: list[Trainer]) -> None:
    plain = train()
    half = train({"training": {"bf16": True}})
    assert plain.result["used"]["compute_dtype"] == "float32"
    assert half.result["used"]["compute_dtype"] == half.result["used"]["weights_dtype"] == "bfloat16"
    assert trainers[1].args.bf16 is True
    assert half.series("loss")[0] == pytest.approx(plain.series("loss")[0], abs=0.05)
    # The trained weights stay in float32: bfloat16 would round small updates away.
    assert {value.dtype for value in half.weights().values()} == {torch.float32}


def test_all_weights_are_held_in_float32_unless_named(train: Any, trainers: list[Trainer]) -> None:
    half = train({**SFT, "training": {"bf16": True}})
    assert half.result["used"]["weights_dtype"] == "float32"
    pure = train({**SFT, "model": {"transformers": {"dtype": "bfloat16"}}, "training": {"bf16": True}})
    assert pure.result["used"]["weights_dtype"] == "bfloat16"


@pytest.mark.parametrize("bits", [4, 8])
def test_a_quantised_base_is_trained_through(bits: int, train: Any, trainers: list[Trainer]) -> None:
    changes = {
        "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},  # blocks of 64 need wider layers than 32
        "quantization": {f"load_in_{bits}bit": True},
        "training": {"max_steps": 6},
    }
    result = train(changes).result
    kinds = {type(module).__name__ for module in trainers[0].model.modules()}
    assert ("Linear4bit" if bits == 4 else "Linear8bitLt") in kinds
    assert result["used"]["quantization"][f"load_in_{bits}bit"] is True
    assert result["held_out"]["fall"] > 0.5


def test_liger_is_asked_of_the_trainer_where_it_is_there(train: Any) -> None:
    from tunefleet.spec import load_task_spec
    from tunefleet.workloads.training.arguments import ArgumentsContext, supervised_arguments
    from tunefleet.workloads.training.model.hardware import Hardware, Kernels

    spec = load_task_spec({**train.spec, "training": {"batch_size": 4}})
    kernels = Kernels("float32", "flash_attention_2", liger=True, varlen=True)
    args = supervised_arguments(spec, ArgumentsContext(Hardware("cuda"), kernels, Path("unused"), "name"))  # type: ignore[arg-type]
    assert (args.use_liger_kernel, args.padding_free, args.dataloader_pin_memory) == (True, True, True)


@pytest.mark.parametrize("kind", ["lora_sft", "sft"])
def test_early_stopping_ends_before_the_last_step(kind: str, train: Any) -> None:
    changes: dict[str, Any] = {} if kind == "lora_sft" else dict(SFT)
    options = {"max_steps": 20, "eval_strategy": "steps", "eval_steps": 1}
    options["early_stopping"] = {"patience": 2, "threshold": 10.0}
    ended = train({**changes, "training": options})
    # The first evaluation is the best so far; two more without a fall of ten nats end it.
    assert ended.result["steps"] == 3
    assert ended.status.state == "completed"


def test_the_best_checkpoint_is_delivered(train: Any) -> None:
    options = {"max_steps": 5, "learning_rate": 0.3, "lr_scheduler_type": "constant", "save_strategy": "steps"}
    options |= {"save_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    ended = train({**SFT, "training": {**options, "save_total_limit": 2}})
    losses = ended.series("eval_loss")
    assert losses[-1] > min(losses)
    assert ended.result["held_out"]["loss_after"] == pytest.approx(min(losses), abs=1e-5)


def test_checkpoints_are_saved_and_kept_as_asked(train: Any) -> None:
    ended = train({"training": {"max_steps": 6, "save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}})
    kept = sorted(path.name for path in ended.folder.checkpoints_dir.iterdir() if path.name != "superseded")
    assert kept == ["checkpoint-4", "checkpoint-6"]
    assert [record["step"] for record in ended.records("checkpoint")] == [2, 4, 6]
    assert (ended.folder.root / "final_lora" / "README.md").is_file(), "what is delivered has a card"
    cards = list(ended.folder.checkpoints_dir.glob("*/README.md"))
    assert cards == [], "and what is for resuming has none, also if it is written in the background"
    again = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    behind = train({"training": again, "checkpoint": {"asynchronous": True}})
    assert list(behind.folder.checkpoints_dir.glob("*/README.md")) == []
    assert (behind.folder.root / "final_lora" / "README.md").is_file()


def test_epochs_and_steps(train: Any) -> None:
    rows = train({"training": {"max_steps": None, "num_train_epochs": 2, "batch_size": 8}, "data": {"eval": None}})
    per_epoch = math.ceil(rows.result["dataset_size"] / 8)
    assert rows.result["steps"] == 2 * per_epoch
    assert rows.result["epochs"] == pytest.approx(2.0)


def test_workers_load_the_same_batches(train: Any) -> None:
    alone, helped = train(), train({"training": {"dataloader_num_workers": 1}})
    assert distance(alone.weights(), helped.weights()) == 0.0


@pytest.mark.parametrize("target", ["all-linear", ["q_proj", "down_proj"]])
def test_the_adapter_goes_where_it_is_told(target: Any, train: Any) -> None:
    names = set(train({"lora": {"target_modules": target}, "data": {"eval": None}}).weights())
    expected = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    expected = expected if target == "all-linear" else set(target)
    assert {name.split(".")[-3] for name in names} == expected


@pytest.mark.parametrize(
    ("options", "sign"),
    [({"use_dora": True}, "lora_magnitude_vector"), ({"modules_to_save": ["norm"]}, "norm.weight")],
)
def test_variants_of_the_adapter_leave_their_tensors(options: dict[str, Any], sign: str, train: Any) -> None:
    assert any(sign in name for name in train({"lora": options, "data": {"eval": None}}).weights())


def test_rank_stabilised_scaling(train: Any, trainers: list[Trainer]) -> None:
    for use in (False, True):
        train({"lora": {"r": 16, "alpha": 8, "use_rslora": use}, "data": {"eval": None}})
    scales = [trainer.model.base_model.model.model.layers[0].self_attn.q_proj.scaling for trainer in trainers]
    assert scales == [{"default": 8 / 16}, {"default": 8 / 4}]


class TestShapes:
    def test_loss_on_everything_when_asked_for(self, train: Any) -> None:
        part, whole = train(), train({"training": {"completion_only_loss": False}})
        assert whole.result["tokens"]["dataset_trained"] > part.result["tokens"]["dataset_trained"]
        assert whole.result["data"]["dropped_rows"] == 0

    def test_chats(self, train: Any, tmp_path: Path) -> None:
        path = tmp_path / "talks.json"
        talk = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
        others = [[{**talk[0], "content": f"{at}+1?"}, {**talk[1], "content": str(at + 1)}] for at in range(1, 9)]
        path.write_text(json.dumps([{"messages": each} for each in others]))
        data = {"path": str(path), "prompt_column": None, "response_column": None, "max_samples": None}
        ended = train(
            {
                "data": {**data, "eval": {"split": None, "max_samples": None, "fraction": 0.25}},
                "evaluate": {"answers": 1, "max_new_tokens": 3},
            }
        )
        assert ended.result["data"]["shape"] == "messages"
        # Of each answer the digit and the end token.
        assert ended.result["tokens"]["dataset_trained"] == 6 * 2
        assert ended.result["held_out"]["answers"][0]["prompt"].endswith("+1?<|end|><|assistant|>")

    def test_inline_prompts(self, train: Any) -> None:
        result = train({"data": {"path": None, "prompt_column": None, "response_column": None, "max_samples": None,
                                 "eval": None, "prompts": ["one two three", "four five"]}}).result  # fmt: skip
        assert (result["data"]["shape"], result["dataset_size"]) == ("text", 2)


class TestPacking:
    def test_sequences_are_filled_and_rows_stay_whole(self, train: Any, trainers: list[Trainer]) -> None:
        result = train({"training": {"packing": True, "max_seq_length": 256, "batch_size": 1}}).result
        dataset = trainers[0].train_dataset
        lengths = [sum(lengths) for lengths in dataset["seq_lengths"]]
        assert max(lengths) <= 256
        assert sum(lengths) == result["tokens"]["dataset"]
        assert len(dataset) == result["data"]["packed_sequences"] < result["data"]["rows"]
        assert result["data"]["packed_filled"] == pytest.approx(sum(lengths) / (256 * len(dataset)), abs=1e-3)
        assert (result["used"]["packing"], result["used"]["padding_free"]) == (True, True)

    def test_rows_do_not_see_each_other(self, train: Any, trainers: list[Trainer], tmp_path: Path) -> None:
        """The gradient of a packed batch equals that of its rows apart."""
        options = {"optim": "sgd", "learning_rate": 0.5, "max_steps": 1, "max_seq_length": 256}
        rows = {"max_samples": 4, "eval": None}
        packed = train({**SFT, "data": rows, "training": {**options, "packing": True, "batch_size": 4}})
        apart = train({**SFT, "data": rows, "training": {**options, "batch_size": 4}})
        assert packed.result["data"]["packed_sequences"] < 4
        assert packed.series("loss")[0] == pytest.approx(apart.series("loss")[0], abs=1e-4)
        assert distance(packed.weights(), apart.weights()) < 1e-5

    def test_labels_are_packed_along(self, tmp_path: Path) -> None:
        name = "builtin:gsm8k-llama-2m"
        tokenizer = base_model.load_tokenizer(base_model.Source(name, str(assets.locate(name, "model"))))
        data = {"path": "builtin:gsm8k", "prompt_column": "question", "response_column": "answer", "max_samples": 20}
        portion = open_portions(TrainingData.model_validate(data), {}, tmp_path, seed=0).train
        found = tokenize(portion.rows, portion.shape, Encoder(tokenizer), 512)
        packed = pack(found.dataset, 512, found.tokens)
        kept = sorted(label for row in packed.dataset for label in row["labels"] if label != -100)
        assert kept == sorted(label for row in found.dataset for label in row["labels"] if label != -100)
        assert Shape(Recognized("text", {"text": "text"}), "x").columns == ("text",)


class TestTrackers:
    def test_tensorboard_writes_into_the_job_folder(self, train: Any) -> None:
        required("tensorboard")
        ended = train({"training": {"report_to": "tensorboard"}})
        assert list((ended.folder.root / "tensorboard").glob("events.out.tfevents.*"))

    def test_other_trackers_get_the_losses_through_transformers(
        self, train: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        required("trackio")
        seen: list[dict[str, float]] = []

        class Recorder(TrainerCallback):
            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
                assert (args.project, args.run_name) == ("tunefleet", "t")
                seen.append(logs)

        monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "trackio", Recorder)
        train({"training": {"report_to": ["trackio"]}, "data": {"eval": None}})
        assert sum("loss" in logs for logs in seen) == 4

    def test_a_tracker_that_is_not_installed_is_named(self, train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        import importlib.util

        found = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "mlflow" else found(name, *a))
        ended = train({"training": {"report_to": ["mlflow"]}})
        assert ended.status.error_kind == "input"
        assert "the package mlflow is not installed" in str(ended.status.error)
