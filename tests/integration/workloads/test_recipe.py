"""A training as a whole: what it measures, delivers, reports, and how it goes on after a kill."""

from __future__ import annotations

import json
import math
import operator
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunefleet import artifacts, trainer_control
from tunefleet.spec import TrainingData


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global AutoModelForCausalLM, Encoder, KillAt, PeftModel, TrainerCallback, base_model, open_portions, tokenize, torch
    pytest.importorskip("torch")

    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, TrainerCallback

    from tunefleet.workloads.common import base_model
    from tunefleet.workloads.data.sources import open_portions
    from tunefleet.workloads.data.tokenization import Encoder, tokenize

    class KillAt(TrainerCallback):
        """Raises at the end of a step, once the checkpoints before it are whole: threads outlive this kill."""

        def __init__(self, step: int) -> None:
            self.step = step

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == self.step:
                deadline = time.monotonic() + 30
                while not all((path / "manifest.json").exists() for path in Path(args.output_dir).glob("checkpoint-*")):
                    assert time.monotonic() < deadline, "a checkpoint was not finished"
                    time.sleep(0.01)
                raise Killed


pytestmark = [pytest.mark.proof, pytest.mark.torch]
SFT = {"taskType": "sft", "lora": None}


def loss_by_hand(model: Any, folder: Path, data: dict[str, Any], limit: int, workspace: Path) -> float:
    """Sum the loss of each held-out row alone, with plain Transformers: no batch, no padding, nothing of ours."""
    tokenizer = base_model.load_tokenizer(base_model.Source("tiny", str(folder)))
    portion = open_portions(TrainingData.model_validate(data), {}, workspace, seed=0).held_out
    assert portion is not None
    total, count = 0.0, 0
    for row in tokenize(portion.rows, portion.shape, Encoder(tokenizer), limit).dataset:
        labels = torch.tensor([row["labels"]])
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row["input_ids"]])).logits
        kept = int((labels[:, 1:] != -100).sum())
        total += torch.nn.functional.cross_entropy(logits[0, :-1], labels[0, 1:], reduction="sum").item()
        count += kept
    return total / count


def test_lora_delivers_an_adapter_that_gives_the_reported_loss(train: Any, tiny_model: Path, tmp_path: Path) -> None:
    ended = train({"evaluate": {"answers": 2, "max_new_tokens": 8}, "training": {"max_steps": 8}})
    result = ended.result
    held_out, spec = result["held_out"], json.loads(ended.folder.job_json.read_text())["spec"]
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    by_hand = (base, tiny_model, spec["data"], 96, tmp_path)
    assert held_out["loss_before"] == pytest.approx(loss_by_hand(*by_hand), abs=1e-3)
    adapted = PeftModel.from_pretrained(base, result["final_lora_path"])
    assert held_out["loss_after"] == pytest.approx(loss_by_hand(adapted, *by_hand[1:]), abs=1e-3)
    assert held_out["fall"] > 0.03
    assert held_out["rows"] == 9  # of 12; the questions of three fill the limit
    assert ended.status.state == "completed"
    config = json.loads(Path(result["final_lora_path"], "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tiny_model)


def test_right_answers_are_counted_before_and_after(train: Any) -> None:
    match = {"rows": 4, "extract": "regex", "pattern": "[aeiou]"}
    ended = train({"evaluate": {"answers": 4, "max_new_tokens": 8, "exact_match": match}})
    held_out = ended.result["held_out"]
    vowels = {
        when: [re.findall("[aeiou]", each[when])[-1:] for each in held_out["answers"]] for when in ("before", "after")
    }
    wanted = [re.findall("[aeiou]", each["reference"])[-1:] for each in held_out["answers"]]
    shares = {when: sum(map(operator.eq, found, wanted)) / 4 for when, found in vowels.items()}
    assert held_out["exact_match"] == {"rows": 4, **shares}
    assert ended.series("held_out_exact_match") == [shares["before"], shares["after"]]
    few = train({"evaluate": {"answers": 1, "max_new_tokens": 8, "exact_match": match}})
    assert len(few.result["held_out"]["answers"]) == 1
    assert few.result["held_out"]["exact_match"]["before"] == shares["before"]
    assert len(few.records("prediction")) == 2


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        (
            {"exact_match": {"extract": "regex", "pattern": "never"}},
            "Row 1 of .* exact_match.extract: .* finds nothing in its reference",
        ),
        ({"exact_match": {}, "max_new_tokens": 100_000}, "No eval prompt leaves space"),
        ({"exact_match": {}, "text_field": "question"}, "are texts without answers"),
    ],
)
def test_what_cannot_be_compared_is_an_error_of_the_user(evaluate: Any, message: str, train: Any) -> None:
    text = evaluate.pop("text_field", None)
    data = {} if text is None else {"data": {"text_field": text, "prompt_column": None, "response_column": None}}
    status = train({"evaluate": evaluate, **data}).status
    assert status.error_kind == "input"
    assert re.search(message, str(status.error))


def test_answers_are_written_before_and_after(train: Any) -> None:
    ended = train({"evaluate": {"answers": 2, "max_new_tokens": 8}})
    predictions = ended.records("prediction")
    assert [(record["step"], record["index"]) for record in predictions] == [(0, 0), (0, 1), (4, 0), (4, 1)]
    for index, answer in enumerate(ended.result["held_out"]["answers"]):
        assert answer["prompt"].endswith("\n")
        assert answer["before"] == predictions[index]["output"]
        assert answer["after"] == predictions[index + 2]["output"]
        assert "####" in answer["reference"]
    # A resume of a run that has done all its steps is refused by its newest record.
    newest = ended.records("progress")[-1]
    assert (newest["step"], newest["max_steps"]) == (4, 4)


def test_the_result_lists_what_was_really_used(train: Any) -> None:
    result = train().result
    used = result["used"]
    assert used["device"] in {"cpu", "cuda"}
    assert used["attention"] in {"sdpa", "flash_attention_2"}
    assert (used["optimizer"], used["optimizer_fused"]) == ("AdamW", True)
    assert used["parameters_trained"] < used["parameters"]
    assert (result["steps"], result["tokens"]["seen"] > 0) == (4, True)
    data = result["data"]
    assert (data["dataset"], data["shape"], data["packed_sequences"]) == ("builtin:gsm8k (train)", "pair", None)
    # Some questions fill the limit alone: nothing of the answer is left to learn.
    assert (data["rows"] + data["dropped_rows"], data["dropped_rows"] > 0) == (48, True)
    assert result["held_out"]["rows"] == data["held_out_rows"]
    assert result["throughput"]["tokens_per_s"] > 0
    assert set(result["timings"]) >= {"data_s", "tokenizing_s", "model_s", "training_s", "saving_s", "total_s"}
    assert result["losses"]["train_last"] < result["losses"]["train_first"]
    for key in ("task_id", "training_successful", "training_time_seconds", "error_message", "model_name"):
        assert key in result


def test_full_training_delivers_a_model(train: Any, tmp_path: Path) -> None:
    result = train(SFT).result
    assert result["used"]["parameters_trained"] == result["used"]["parameters"]
    model = AutoModelForCausalLM.from_pretrained(result["final_model_path"])
    data = json.loads((Path(result["output_dir"]) / "job.json").read_text())["spec"]["data"]
    by_hand = loss_by_hand(model, Path(result["final_model_path"]), data, 96, tmp_path)
    assert result["held_out"]["loss_after"] == pytest.approx(by_hand, abs=1e-3)
    assert model.config.use_cache is True


def test_a_model_is_left_out_when_it_is_not_wanted_and_an_archive_is_the_workers_business(train: Any) -> None:
    folder = train({"output": {"artifacts": ["final_lora.tar.gz"]}}).folder.root
    assert (folder / "final_lora").is_dir()
    assert not (folder / "final_lora.tar.gz").exists()
    nothing = train({"training": {"save_model": False}})
    keys = {name: value for name, value in nothing.result.items() if name.startswith("final_lora_")}
    assert keys.pop("final_lora_archive_uploaded") is False
    assert keys == dict.fromkeys(
        f"final_lora_{key}" for key in ("path", "archive", "archive_path", "archive_url", "archive_bytes")
    )
    assert not (nothing.folder.root / "final_lora").exists()


def test_training_without_held_out_rows(train: Any) -> None:
    result = train({"data": {"eval": None}}).result
    assert result["held_out"] is None
    assert result["losses"]["held_out_after"] is None


class Killed(BaseException):
    """Ends a training in the middle, as a signal would."""


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    callbacks = trainer_control.callbacks_for_job

    def arm(step: int | None) -> None:
        extra = [] if step is None else [KillAt(step)]
        monkeypatch.setattr(trainer_control, "callbacks_for_job", lambda folder: [*callbacks(folder), *extra])

    return arm


def test_a_killed_training_goes_on_bit_for_bit(train: Any, kill_at: Any) -> None:
    spec = {
        "training": {"max_steps": 8, "save_strategy": "steps", "save_steps": 3, "lr_scheduler_type": "cosine"},
        "lora": {"dropout": 0.1},
        "evaluate": {"answers": 1, "max_new_tokens": 4},
    }
    straight = train(spec)
    kill_at(5)
    with pytest.raises(Killed):
        train(spec)
    folder = next(path for path in straight.folder.root.parent.iterdir() if path.name == "job-2")
    assert (folder / "baseline.json").exists()
    kill_at(None)
    resumed = train(spec, again=type(straight)(1, type(straight.folder)(folder), ""))
    assert resumed.records("launch")[0]["from_step"] == 3
    assert resumed.result["resume_from_path"].endswith("checkpoint-3")
    for name, value in straight.weights().items():
        assert torch.equal(value, resumed.weights()[name]), name
    assert resumed.result["held_out"]["loss_before"] == straight.result["held_out"]["loss_before"]
    assert resumed.result["tokens"]["seen"] == straight.result["tokens"]["seen"]
    assert resumed.series("num_tokens")[-1] == straight.series("num_tokens")[-1]
    # The answers before the training were written once, by the first launch.
    assert [record["step"] for record in resumed.records("prediction")] == [8]


def test_a_training_killed_after_its_last_checkpoint_trains_no_further(train: Any) -> None:
    spec = {"training": {"max_steps": 5, "save_strategy": "steps", "save_steps": 5, "lr_scheduler_type": "constant"}}
    straight = train(spec)
    weights, result = straight.weights(), straight.result
    straight.folder.responses_json.unlink()
    resumed = train(spec, again=straight)
    assert resumed.records("launch")[0]["from_step"] == 5
    assert resumed.series("loss") == []
    assert resumed.result["steps"] == result["steps"] == 5
    assert resumed.result["held_out"]["loss_after"] == result["held_out"]["loss_after"]
    for name, value in resumed.weights().items():
        assert torch.equal(value, weights[name]), name
    assert [path.name for path in straight.folder.checkpoints_dir.glob("checkpoint-*")] == ["checkpoint-5"]


def test_a_training_that_has_its_result_is_not_run_again(train: Any) -> None:
    ended = train()
    before = ended.folder.responses_json.read_bytes()
    again = train(again=ended)
    assert again.code == 0
    assert again.folder.responses_json.read_bytes() == before
    assert again.series("loss") == []
    assert again.status.state == "completed"


def test_evaluations_do_not_change_the_training(train: Any) -> None:
    quiet = train({"lora": {"dropout": 0.2}, "data": {"eval": None}})
    watched = train(
        {
            "lora": {"dropout": 0.2},
            "training": {"eval_strategy": "steps", "eval_steps": 1},
            "evaluate": {"answers": 1, "max_new_tokens": 4},
        }
    )
    assert len(watched.series("eval_loss")) == 4
    for name, value in quiet.weights().items():
        assert torch.equal(value, watched.weights()[name]), name


def test_the_evaluation_loss_is_the_exact_mean_over_tokens(train: Any) -> None:
    # 12 rows in batches of 8: a mean of batch means would differ.
    ended = train({"training": {"eval_strategy": "steps", "eval_steps": 4}})
    assert ended.series("eval_loss")[-1] == pytest.approx(ended.result["held_out"]["loss_after"], abs=1e-6)
    assert math.isfinite(ended.series("held_out_loss")[0])


def test_an_adapter_is_trained_further(train: Any) -> None:
    first = train()
    second = train({"checkpoint": {"load": {"path": str(first.folder.root / "final_lora")}}})
    before, after = first.result["held_out"], second.result["held_out"]
    assert after["loss_before"] == pytest.approx(before["loss_after"], abs=1e-5)


def test_a_model_is_trained_further_from_an_archive(train: Any) -> None:
    first = train(SFT)
    archive = first.folder.root / "final_model.tar.gz"
    artifacts.pack(first.folder.root / "final_model", archive)
    second = train({**SFT, "checkpoint": {"load": {"path": str(archive)}}})
    assert second.result["held_out"]["loss_before"] == pytest.approx(first.result["held_out"]["loss_after"], abs=1e-5)


@pytest.mark.parametrize(("as_chat", "warned"), [(False, True), (True, False)])
def test_plain_text_on_a_model_with_a_chat_template_is_reported(
    as_chat: bool, warned: bool, train: Any, tiny_model: Path, tmp_path: Path
) -> None:
    model = tmp_path / "chat-model"
    shutil.copytree(tiny_model, model)
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    (model / "chat_template.jinja").write_text(template, encoding="utf-8")
    rows = tmp_path / "alpaca.jsonl"
    row = {"instruction": "Add.", "input": "1 and 2", "output": "3"}
    rows.write_text((json.dumps(row) + "\n") * 4, encoding="utf-8")
    columns = dict.fromkeys(("prompt_column", "response_column", "separator", "eval", "max_samples"))
    data = {**columns, "path": str(rows), "as_chat": as_chat}
    ended = train(
        {"model": {"source": {"identifier": str(model)}}, "data": data, "training": {"max_steps": 1}},
    )
    assert any(each["name"] == "data.plain_text" for each in ended.records("event")) is warned
