"""Trainings on preferences and rewards, in this process, on a model so small that a step takes milliseconds."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.workloads.conftest import Ended, Train, merge
from tests.integration.workloads.test_label_scoring import assert_trained_alike, counted
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control import session
from tunefleet.workloads import entrypoint


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global AutoModelForCausalLM, Crash, LoraConfig, TrainerCallback, common_callbacks, get_peft_model, method, torch
    pytest.importorskip("torch")

    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, TrainerCallback

    from tunefleet.workloads.preference import method
    from tunefleet.workloads.training.callbacks import common_callbacks

    class Crash(TrainerCallback):
        """Ends the process' training as a fault would, in the middle between two checkpoints."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                raise RuntimeError("lost in the middle")


pytestmark = [pytest.mark.torch, pytest.mark.proof]

COMMON: dict[str, Any] = {
    "data": {
        "path": "builtin:gsm8k-preferences",
        "max_samples": 24,
        "separator": "\n",
        "eval": {"split": "test", "max_samples": 8},
    },
    "training": {
        "max_steps": 4,
        "batch_size": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "max_seq_length": 224,
        "save_strategy": "no",
        "seed": 3,
    },
}
QUESTIONS = {
    "path": "builtin:gsm8k",
    "prompt_column": "question",
    "reference_column": "answer",
    "max_samples": 16,
    "eval": {"split": "test", "max_samples": 4},
}
GROUPS: dict[str, Any] = {
    "data": QUESTIONS,
    "rewards": [{"type": "exact_match"}, {"type": "length", "max_tokens": 8, "weight": 0.5}],
    "generation": {"max_new_tokens": 12},
    "training": {"batch_size": 8, "num_generations": 4, "max_seq_length": 160},
}
LORA = {"lora": {"r": 4, "alpha": 8, "target_modules": "all-linear", "dropout": 0.0}}
Align = Callable[..., Ended]


@pytest.fixture
def align(tiny_model: Path, tmp_path: Path) -> Align:
    """Run a training: `align("dpo", {...})` changes the spec above; `again=` starts another launch on a folder."""
    numbers = itertools.count(1)

    def go(kind: str, changes: dict[str, Any] | None = None, *, again: Ended | None = None) -> Ended:
        number = next(numbers)
        folder = again.folder if again else JobFolder(tmp_path / f"job-{number}")
        folder.root.mkdir(exist_ok=True)
        groups = GROUPS if kind in {"grpo", "rloo"} else {}
        base = {"taskType": kind, "model": {"source": {"identifier": str(tiny_model)}}, **COMMON}
        if groups:
            base = {**base, **groups, "training": {**COMMON["training"], **groups["training"]}}
        session._sessions.clear()
        launch = f"launch-{number}"
        job = {"job_id": "j", "task_id": "j", "attempt": 1, "launch": launch, "kind": kind, "name": "t", "inputs": {}}
        job |= {"program": "tunefleet.workloads.preference:main", "spec": merge(base, changes or {})}
        folder.job_json.write_text(json.dumps(job))
        return Ended(entrypoint.main(folder.root), folder, launch)

    return go


@pytest.mark.parametrize(("kind", "module"), [("dpo", "dpo"), ("kto", "kto")])
def test_scoring_labels_alone_trains_as_scoring_all_positions(
    kind: str, module: str, align: Align, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {**LORA, "training": {"gradient_accumulation_steps": 2}}
    scored = counted(monkeypatch)
    ours = align(kind, changes)
    count = len(scored)
    assert scored, "labelled positions alone were scored"
    replaced: list[object] = []
    monkeypatch.setattr(f"tunefleet.workloads.preference.{module}.score_labels_only", replaced.append)
    plain = align(kind, changes)
    assert replaced
    assert len(scored) == count, "and all of them in the run to compare with"
    assert_trained_alike(ours, plain, 4)


# Whole and with an adapter: each kind is trained one way here, and the other way by the test of what broke.
ADAPTED_WHERE_IT_BREAKS = {"dpo", "rloo"}


@pytest.mark.parametrize("kind", ["dpo", "kto", "orpo", "reward", "grpo", "rloo"])
def test_each_kind_trains_measures_and_delivers(kind: str, align: Align) -> None:
    changes = {} if kind in ADAPTED_WHERE_IT_BREAKS else LORA
    ended = align(kind, changes)
    result = ended.result
    product = "final_lora" if changes else "final_model"
    assert result[f"{product}_path"].endswith(product)
    assert result["steps"] == 4
    assert result["dataset_size"] == (16 if kind in {"grpo", "rloo"} else 48 if kind == "kto" else 24)
    before, after = result["held_out"]["before"], result["held_out"]["after"]
    assert before.keys() == after.keys()
    assert all(isinstance(value, float) for value in after.values())
    assert result["tokens"]["seen"] > 0
    if kind in {"dpo", "orpo", "reward"}:
        assert 0 <= after["accuracy"] <= 1
    assert ended.weights()


@pytest.mark.parametrize(
    "kind",
    ["reward", *(pytest.param(kind) for kind in ("dpo", "kto", "orpo", "grpo", "rloo"))],
)
def test_a_training_that_broke_ends_with_the_weights_of_one_that_did_not(
    kind: str, align: Align, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = {"save_strategy": "steps", "save_steps": 2, "max_steps": 5, "eval_strategy": "steps", "eval_steps": 1}
    spec = merge(
        {"training": often, "data": {"eval": {"max_samples": 4}}}, LORA if kind in ADAPTED_WHERE_IT_BREAKS else {}
    )
    straight = align(kind, spec)
    with monkeypatch.context() as broken:
        broken.setattr(f"{method.__name__}.common_callbacks", lambda launch: [*common_callbacks(launch), Crash()])
        lost = align(kind, spec)
    assert lost.code == 1
    assert "lost in the middle" in (lost.status.error or "")
    resumed = align(kind, spec, again=lost)
    assert resumed.result["resume_from_path"].endswith("checkpoint-2")
    assert resumed.result["held_out"] == straight.result["held_out"]
    assert resumed.result["tokens"] == straight.result["tokens"]
    ours, theirs = resumed.weights(), straight.weights()
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)


PAIR = {"prompt": "a", "chosen": "b", "rejected": "c"}
SAID = [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("kind", "rows", "said"),
    [
        ("dpo", [PAIR, {"prompt": "a", "chosen": "b"}], "Row 2 of .* it has no column 'rejected'"),
        ("dpo", [{**PAIR, "chosen": ""}], "Row 1 of .* has an empty answer"),
        ("orpo", [{**PAIR, "rejected": SAID}], "Row 1 of .* do not begin with the same prompt"),
        ("reward", [{**PAIR, "rejected": "b"}], "No row of .* has trained tokens"),
        ("kto", [{"prompt": "a", "completion": "b", "label": "so-so"}], "Row 1 of .*'label' holds 'so-so'"),
        ("grpo", [{"question": "a", "answer": None}], "Row 1 of .*'answer' holds nothing"),
        ("grpo", [{"question": "a", "answer": "b"}], "A step needs 2 prompts .* has 1 usable"),
        ("rloo", [{"answer": "b"}], "Row 1 of .* it has no column 'question'"),
        ("rloo", [{"question": q, "answer": "b"} for q in ("a", SAID)], "Row 2 of .* a chat in 'question', .* texts"),
    ],
)
def test_what_cannot_be_used_names_row_and_column(
    kind: str, rows: list[dict[str, Any]], said: str, align: Align, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ended = align(kind, {"data": {"path": str(file), "max_samples": None, "eval": None}})
    assert ended.code == entrypoint.INPUT_FAILED
    assert re.search(said, ended.status.error or "")


def test_chats_are_laid_out_by_the_template_and_only_answers_count(align: Align, tmp_path: Path) -> None:
    answers = {
        "chosen": [{"role": "assistant", "content": "four"}],
        "rejected": [{"role": "assistant", "content": "5"}],
    }
    rows = [{"prompt": SAID, **answers}, {name: [*SAID, *answer] for name, answer in answers.items()}]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[:1] * 8))
    whole = tmp_path / "whole.jsonl"
    whole.write_text("".join(json.dumps(row) + "\n" for row in rows[1:] * 8))
    changes: dict[str, Any] = {"data": {"max_samples": None, "eval": None}, "training": {"max_steps": 2}}
    apart = align("dpo", merge(changes, {"data": {"path": str(file)}}))
    together = align("dpo", merge(changes, {"data": {"path": str(whole)}}))
    assert apart.result["data"]["rows"] == 8
    weights = together.weights()
    assert all(tensor.equal(weights[name]) for name, tensor in apart.weights().items()), "a prompt may stand in both"


def test_the_reference_may_judge_all_pairs_before(align: Align) -> None:
    at_once = align("dpo", {"training": {"precompute_ref_log_probs": True}})
    beside = align("dpo")
    assert at_once.result["losses"]["train_last"] == pytest.approx(beside.result["losses"]["train_last"], abs=1e-5)
    assert at_once.result["held_out"]["after"]["loss"] == pytest.approx(
        beside.result["held_out"]["after"]["loss"], abs=1e-5
    )
    assert not (at_once.folder.root / "reference").exists()


@pytest.mark.parametrize("kind", ["dpo", "kto", "reward", "grpo", "rloo", "lora_sft"])
def test_a_base_in_four_bits_is_trained_through_and_its_adapter_is_not_rounded(
    kind: str, align: Align, train: Train
) -> None:
    changes = {"quantization": {"load_in_4bit": True}, "training": {"max_steps": 1}, "data": {"eval": None}, **LORA}
    if kind in {"rloo", "lora_sft"}:
        # What is trained whole is held in float32, too, and the rest draws answers in bfloat16.
        draws = {"model": {"config": {"bf16": True}}, "lora": {"modules_to_save": ["norm"]}}
        changes = merge(merge(changes, {"data": {"eval": {"split": "test", "max_samples": 4}}}), draws)
    ended = train(changes) if kind == "lora_sft" else align(kind, changes)
    assert ended.result["used"]["quantization"]["load_in_4bit"] is True
    assert ended.result["losses"]["train_last"] is not None
    assert {tensor.dtype for tensor in ended.weights().values()} == {torch.float32}


@pytest.fixture
def adapter(tiny_model: Path, tmp_path: Path) -> Path:
    """An adapter that makes another model of it."""
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    config = LoraConfig(r=4, lora_alpha=64, target_modules="all-linear", init_lora_weights=False)
    get_peft_model(base, config).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks Transformers by a name that will go
@pytest.mark.parametrize("kind", ["dpo", "rloo"])
def test_one_that_goes_on_from_an_adapter_is_held_to_it_and_not_to_the_base(
    kind: str, align: Align, adapter: Path
) -> None:
    start = {"checkpoint": {"load": {"path": str(adapter)}}, "training": {"max_steps": 1}}
    ended = align(kind, merge(start, {"lora": {**LORA["lora"], "alpha": 64}}))
    if kind == "dpo":
        assert ended.result["held_out"]["before"]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    else:
        assert ended.series("kl") == [pytest.approx(0, abs=1e-6)]
