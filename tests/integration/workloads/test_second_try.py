"""What a training does after its memory did not suffice, or after it has broken: the same attempt, another launch."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime.monitor import guard
from tunefleet.trainer_control.checkpoints import finalizer
from tunefleet.trainer_control.checkpoints.manifest import find_newest


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Trainer, torch
    pytest.importorskip("torch")

    import torch

    from tunefleet.workloads.training.trainer import Trainer


pytestmark = [pytest.mark.proof, pytest.mark.torch]

SAVES = {"save_strategy": "steps", "save_steps": 2}


def spec_of(ended: Any) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(ended.folder.job_json.read_text())["spec"]
    return spec


def plan(ended: Any, reason: TaskReason) -> str | None:
    return guard.retry_plan(ended.folder, spec_of(ended), reason, ended.launch)


@pytest.fixture
def short_of_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From its fourth step on a pass of more than one row does not fit; returns the sizes that were tried."""
    usual, tried = Trainer.training_step, list[int]()

    def step(self: Trainer, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        tried.append(len(inputs["input_ids"]))
        if self.state.global_step >= 3 and tried[-1] > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return usual(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(Trainer, "training_step", step)
    return tried


def test_a_batch_that_does_not_fit_is_halved_twice_and_the_step_stays_as_large(
    train: Any, short_of_memory: list[int]
) -> None:
    changes = {"training": {"batch_size": 4, "max_steps": 6, **SAVES}}
    first = train(changes)
    assert (first.status.error_kind, first.code) == ("oom", 1)
    assert "batch size 4: continuing with 2 and 2 accumulation steps" in str(plan(first, TaskReason.OUT_OF_MEMORY))
    assert plan(first, TaskReason.OUT_OF_MEMORY), "a worker that died after it asks again, and changes nothing more"
    second = train(changes, again=first)
    assert second.status.error_kind == "oom"
    assert second.records("launch")[0]["from_step"] == 2
    assert plan(second, TaskReason.OUT_OF_MEMORY)
    last = train(changes, again=second)
    assert set(short_of_memory[-12:]) == {1}
    result = last.result
    assert (result["steps"], result["used"]["batch_size"]) == (6, 4)
    assert result["overrides"] == {"batch_size": 1, "gradient_accumulation_steps": 4}
    (event,) = [record for record in last.records("event") if record["name"] == "training.batch_halved"]
    assert event["data"] == {"batch_size": 1, "gradient_accumulation_steps": 4}
    assert [record["window"] for record in last.records("metric") if record["window"]] == [
        [3, 3],
        [4, 4],
        [5, 5],
        [6, 6],
    ]


@pytest.mark.parametrize(
    ("sizes", "half"),
    [((4, 1), (2, 2)), ((3, 1), (1, 3)), ((6, 5), (3, 10)), ((5, 2), (2, 5)), ((2, 1), (1, 2)), ((1, 8), None)],
)
def test_half_a_batch_keeps_the_rows_of_a_step(sizes: tuple[int, int], half: tuple[int, int] | None) -> None:
    assert guard.halved(*sizes) == half


def test_one_row_that_does_not_fit_and_a_task_that_wants_no_other_try_fail_for_good(train: Any) -> None:
    ended = train({"training": {"batch_size": 1, "max_steps": 1}})
    assert plan(ended, TaskReason.OUT_OF_MEMORY) is None
    ended = train({"training": {"max_steps": 1}, "on_oom": "fail"})
    assert plan(ended, TaskReason.OUT_OF_MEMORY) is None
    assert plan(ended, TaskReason.BUG) is None
    assert not ended.folder.overrides_json.exists()


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The loss of step `at` is no number, as often as `times` says."""
    usual, plan = Trainer.training_step, {"at": 5, "times": 1}

    def step(self: Trainer, model: Any, *args: Any, **kwargs: Any) -> Any:
        loss = usual(self, model, *args, **kwargs)
        if self.state.global_step + 1 == plan["at"] and plan["times"]:
            plan["times"] -= 1
            with torch.no_grad():
                next(p for p in model.parameters() if p.requires_grad).fill_(float("nan"))
            return loss * float("nan")
        return loss

    monkeypatch.setattr(Trainer, "training_step", step)
    return plan


def test_a_loss_that_is_no_number_ends_the_training_before_it_is_saved(train: Any, poisoned: dict[str, int]) -> None:
    poisoned["at"] = 4  # a step that is saved
    ended = train({"training": {"max_steps": 8, **SAVES}})
    assert (ended.code, ended.status.error_kind) == (1, "diverged")
    assert "The loss at step 4 is nan." in str(ended.status.error)
    assert plan(ended, TaskReason.DIVERGED) is None
    whole = [path.parent.name for path in ended.folder.checkpoints_dir.glob("checkpoint-*/manifest.json")]
    assert whole == ["checkpoint-2"]


def test_a_checkpoint_that_was_saved_before_the_trouble_is_finished(
    train: Any, poisoned: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = finalizer.finish_checkpoint

    def slowly(*args: Any, **known: Any) -> Any:
        time.sleep(0.5)
        return usual(*args, **known)

    monkeypatch.setattr(finalizer, "finish_checkpoint", slowly)
    ended = train({"training": {"max_steps": 8, **SAVES}, "on_nan": "rollback"})
    assert ended.status.error_kind == "diverged"
    newest = find_newest(ended.folder.checkpoints_dir)
    assert newest is not None
    assert newest.step == 4, "the trouble began with the next step"


def test_a_rollback_goes_on_from_the_last_good_checkpoint_with_half_the_rate(
    train: Any, poisoned: dict[str, int]
) -> None:
    changes = {"training": {"max_steps": 8, "lr_scheduler_type": "constant", **SAVES}, "on_nan": "rollback"}
    first = train(changes)
    assert first.status.error_kind == "diverged"
    assert "0.005" in str(plan(first, TaskReason.DIVERGED))
    second = train(changes, again=first)
    assert second.records("launch")[0]["from_step"] == 4
    assert second.result["overrides"] == {"learning_rate": 0.005, "rollbacks": 1}
    assert second.series("learning_rate") == [0.005] * 4
    assert all(loss == loss for loss in second.series("loss"))


def test_rollbacks_come_to_an_end(train: Any, poisoned: dict[str, int]) -> None:
    changes = {"training": {"max_steps": 3, "save_strategy": "no"}, "on_nan": "rollback"}
    poisoned |= {"at": 2, "times": 9}
    ended = train(changes)
    rates = []
    while plan(ended, TaskReason.DIVERGED):
        rates.append(json.loads(ended.folder.overrides_json.read_text())["learning_rate"])
        ended = train(changes, again=ended)
    assert rates == [0.005, 0.0025, 0.00125]


def test_a_broken_training_goes_on_if_that_is_wanted(train: Any, poisoned: dict[str, int]) -> None:
    ended = train({"training": {"max_steps": 8}, "on_nan": "ignore", "data": {"eval": None}})
    assert ended.status.state == "completed"
    assert [record["level"] for record in ended.records("event") if record["name"] == "training.diverged"] == [
        "warning"
    ]


def test_a_loss_that_climbs_and_stays_high_is_noticed_and_a_spike_is_not() -> None:
    from tunefleet.workloads.training.callbacks import LossRise

    climb = LossRise()
    steady = [2.0 + 0.3 * (step % 3) for step in range(40)]
    assert not any(climb.add(step, loss) for step, loss in enumerate(steady))
    assert not any(climb.add(40 + n, loss) for n, loss in enumerate([50.0, 60.0, 2.0]))
    assert [climb.add(50 + n, 9.0) for n in range(10)] == [None] * 9 + [50]


def test_answers_are_written_at_evaluations_and_change_nothing(train: Any) -> None:
    options = {"lora": {"dropout": 0.2}, "training": {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 2}}
    quiet = train(options)
    predictions = {"sample_count": 2, "max_new_tokens": 4, "sample_frequency": 2}
    watched = train({**options, "predictions": predictions})
    written = [(record["step"], record["index"]) for record in watched.records("prediction")]
    assert written == [(4, 0), (4, 1)]
    assert all(record["reference"] for record in watched.records("prediction"))
    for name, value in quiet.weights().items():
        assert torch.equal(value, watched.weights()[name]), name


def test_answers_at_epochs(train: Any) -> None:
    changes = {"data": {"max_samples": 8}, "training": {"max_steps": None, "num_train_epochs": 2, "batch_size": 4}}
    ended = train({**changes, "predictions": {"sample_count": 1, "max_new_tokens": 2, "sample_frequency": "epoch"}})
    steps = ended.result["steps"]
    assert [record["step"] for record in ended.records("prediction")] == [steps // 2, steps]


def test_a_share_of_the_gpu_that_is_none_is_refused(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFLEET_GPU_MEMORY_FRACTION", "1.5")
    ended = train()
    assert ended.code == 2
    assert "TUNEFLEET_GPU_MEMORY_FRACTION is '1.5'" in str(ended.status.error)


def test_a_stream_is_trained_once_around_and_further(train: Any, tmp_path: Path) -> None:
    rows = [{"question": f"What is {n} + 1?", "answer": f"It is {n + 1}."} for n in range(7)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"path": None, "jsonl_path": str(file), "streaming": True, "shuffle_buffer": 3, "max_samples": None}
    ended = train({"data": data, "training": {"max_steps": 9, "batch_size": 3}})
    assert ended.result["data"]["streaming"] is True
    assert ended.series("epoch") == []
    assert [record["epoch"] for record in ended.records("metric") if record["window"]][-1] == 1.0
