"""`TrainerControlCallback` in a real Trainer: every command, and what follows after it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunefleet.runtime.control import ControlClient, find_endpoint
from tunefleet.trainer_control.checkpoints.manifest import invalid_reason
from tunefleet.trainer_control.journal.status import StatusFile


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global At, Rates, TrainerCallback, TrainerControlCallback, Witness, torch
    pytest.importorskip("torch")
    pytest.importorskip("transformers")

    import torch
    from transformers import TrainerCallback

    from tests.integration.trainer_control.tiny import At, Rates

    class Witness(TrainerCallback):
        """A user's own callback behind ours: what still reaches it."""

        def __init__(self) -> None:
            self.seen: list[str] = []

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.seen.append(f"save {state.global_step}")

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.seen.append("end")

    from tunefleet import TrainerControlCallback


pytestmark = pytest.mark.torch

BEST = {
    "eval_strategy": "steps",
    "eval_steps": 4,
    "save_strategy": "steps",
    "save_steps": 4,
    "load_best_model_at_end": True,
    "metric_for_best_model": "loss",
}
Make = Callable[..., Any]


def test_the_job_is_found_while_it_trains_and_says_how_it_went_afterwards(script: Make, jobs: Path) -> None:
    one = script()
    seen: dict[str, Any] = {}

    def look() -> None:
        endpoint = find_endpoint(jobs, "mine")
        assert endpoint is not None
        client = ControlClient(endpoint)
        seen.update(client.status(), id=client.send("save_checkpoint").command_id)

    one.trainer.add_callback(At(5, look))
    loading = one.status
    one.run()
    assert (loading["state"], loading["phase"]) == ("starting", "loading")
    assert (seen["status"], seen["phase"], seen["global_step"], seen["max_steps"]) == ("running", "training", 4, 8)
    assert seen["eta_s"] > 0
    assert {"loss", "learning_rate", "epoch", "timestamp"} <= seen.keys()
    assert (one.outcome(seen["id"]).state, one.outcome(seen["id"]).checkpoint) == ("durable", "checkpoint-5")
    assert invalid_reason(one.output / "checkpoint-5") is None
    one.end()
    assert find_endpoint(jobs, "mine") is None
    assert json.loads((jobs / "mine/status.json").read_text())["state"] == "completed"
    (command,) = json.loads((jobs / "mine/commands.json").read_text())["commands"]
    assert command["state"] == "durable"


def test_the_endpoint_can_stay_and_then_says_when_it_ended(script: Make, jobs: Path) -> None:
    one = script(cleanup_on_exit=False)
    one.run()
    one.end()
    assert json.loads((jobs / "mine/endpoint.json").read_text())["ended_at"] > 0


def test_checkpoints_get_manifests_and_their_number_stays_the_trainers(script: Make) -> None:
    one = script(save_strategy="steps", save_steps=2, save_total_limit=2)
    one.run()
    assert one.args.save_total_limit == 2
    assert one.saved() == ["checkpoint-6", "checkpoint-8", "final"]
    assert [invalid_reason(one.output / name) for name in ("checkpoint-6", "checkpoint-8")] == [None, None]


def test_save_is_evaluated_and_may_be_the_best(script: Make) -> None:
    one = script(**BEST, learning_rate=1e6, lr_scheduler_type="constant", save_total_limit=4)
    one.ask(1, "save_checkpoint")
    one.run()
    assert one.outcome().state == "durable"
    # Every step makes it worse: the one that was saved by hand is the best.
    assert one.trainer.state.best_model_checkpoint.endswith("checkpoint-1")


def test_a_save_under_the_strategy_best_is_written_though_it_is_not_the_best(script: Make) -> None:
    options = {**BEST, "save_strategy": "best", "eval_steps": 1, "learning_rate": 1e6, "lr_scheduler_type": "constant"}
    one = script(**options)
    one.ask(3, "save_checkpoint")
    one.run()
    assert one.outcome().state == "durable"
    assert {"checkpoint-1", "checkpoint-3"} <= set(one.saved())
    assert "checkpoint-4" not in one.saved()
    assert one.args.save_strategy == "best"


@pytest.mark.parametrize("options", [{}, BEST, {"eval_strategy": "epoch", "save_strategy": "epoch"}], ids=str)
def test_a_paused_training_ends_as_the_one_that_never_paused(script: Make, options: dict[str, Any]) -> None:
    straight = script(output="straight", **options).run()
    witness = Witness()
    first = script(witness, **options)
    first.ask(3, "pause")
    with pytest.raises(SystemExit) as ended:
        first.run()
    assert not ended.value.code
    assert (first.outcome().state, first.outcome().checkpoint) == ("durable", "checkpoint-3")
    assert (first.status["state"], first.status["intent"], first.status["step"]) == ("paused", "pause", 3)
    assert first.saved() == ["checkpoint-3"]
    assert witness.seen == ["save 3"]
    second = script(**options)
    assert second.run(resume=True) == straight
    assert second.status["state"] == "completed"


def test_a_pause_with_an_evaluation_in_its_step_resumes_to_the_bit(script: Make) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 3}
    straight = script(output="straight", **options).run()
    first = script(**options)
    first.ask(3, "evaluate", command_id="cmd-2")
    first.ask(3, "pause")
    with pytest.raises(SystemExit):
        first.run()
    assert script(**options).run(resume=True) == straight


def test_a_pause_whose_checkpoint_fails_has_failed_and_the_training_goes_on(
    script: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tunefleet.trainer_control.checkpoints.finalizer.finish_checkpoint", full)
    one = script()
    one.ask(3, "pause")
    one.run()
    assert (one.outcome().state, one.status["state"], one.status["step"]) == ("failed", "completed", 8)
    assert "No space left" in str(one.outcome().message)


@pytest.mark.parametrize("command", ["abort", "pause"])
def test_on_a_full_disk_an_abort_ends_and_a_pause_fails(
    script: Make, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    write = StatusFile.write

    def full(self: StatusFile, **fields: Any) -> None:
        if fields.get("state") in ("aborted", "paused"):
            raise OSError(28, "No space left on device")
        write(self, **fields)

    monkeypatch.setattr(StatusFile, "write", full)
    one = script()
    one.ask(3, command)
    if command == "abort":
        with pytest.raises(SystemExit):
            one.run()
        assert one.saved() == []
        return
    one.run()
    assert (one.outcome().state, one.status["state"], one.status["step"]) == ("failed", "completed", 8)
    assert "could not be recorded" in str(one.outcome().message)


@pytest.mark.parametrize("options", [{}, BEST], ids=["plain", "load_best_model_at_end"])
def test_abort_writes_nothing_more(script: Make, options: dict[str, Any]) -> None:
    witness = Witness()
    one = script(witness, **options)
    one.ask(6, "abort")
    with pytest.raises(SystemExit):
        one.run()
    assert one.saved() == (["checkpoint-4"] if options else [])
    assert "end" not in witness.seen
    assert (one.status["state"], one.outcome().state, one.outcome().step) == ("aborted", "applied", 6)


@pytest.mark.parametrize("command", ["graceful_stop", "save_and_stop"])
def test_a_stop_ends_at_its_step_and_the_script_goes_on(script: Make, command: str) -> None:
    one = script(eval_strategy="epoch", save_strategy="epoch")
    one.ask(3, command)
    one.run()
    assert one.saved() == (["final"] if command == "graceful_stop" else ["checkpoint-3", "final"])
    assert (one.status["state"], one.status["step"]) == ("stopped", 3)


def test_an_evaluation_changes_nothing_but_what_is_logged(script: Make) -> None:
    # It gets better with every step, so the earliest is the best where worse counts as better.
    options = {**BEST, "learning_rate": 1e-2, "lr_scheduler_type": "constant", "greater_is_better": True}
    without = script(output="without", **options)
    plain = without.run()
    one = script(**options)
    one.ask(2, "evaluate")
    assert one.run() == plain
    assert one.outcome().state == "applied"
    assert 2 in [entry["step"] for entry in one.trainer.state.log_history if "eval_loss" in entry]
    # Step 2 was better than all that follow, but nothing was saved there that could be loaded at the end.
    assert one.trainer.state.best_global_step == without.trainer.state.best_global_step == 4


def test_an_evaluation_is_refused_where_there_is_none(script: Make) -> None:
    one = script()
    one.ask(2, "evaluate")
    one.run()
    assert (one.outcome().state, one.status["state"]) == ("failed", "completed")
    assert "eval_strategy" in str(one.outcome().message)


def test_a_learning_rate_is_set_in_the_schedule_and_survives_a_resume(script: Make) -> None:
    def linear(step: int, peak: float) -> float:
        return peak * (8 - step + 1) / 8

    rates = Rates()
    first = script(rates, learning_rate=1e-3)
    first.ask(2, "set", {"learning_rate": 4e-3})
    first.ask(4, "pause", command_id="cmd-2")
    with pytest.raises(SystemExit):
        first.run()
    again = Rates()
    script(again, learning_rate=1e-3).run(resume=True)
    seen = {**rates.seen, **again.seen}
    expected = {step: linear(step, 1e-3 if step <= 2 else 4e-3) for step in range(1, 9)}
    assert seen == pytest.approx(expected)


def test_what_was_set_after_the_last_checkpoint_is_not_lost_with_it(script: Make) -> None:
    first = script(learning_rate=1e-3, save_strategy="steps", save_steps=2)
    first.ask(3, "set", {"learning_rate": 4e-3, "save_steps": 3, "logging_steps": 1})
    first.ask(4, "abort", command_id="cmd-2")
    with pytest.raises(SystemExit):
        first.run()
    rates = Rates()
    second = script(rates, learning_rate=1e-3, save_strategy="steps", save_steps=2)
    second.run(resume=True)
    assert rates.seen[3] == pytest.approx(4e-3 * 6 / 8)
    assert second.saved() == ["checkpoint-2", "checkpoint-3", "checkpoint-6", "checkpoint-8", "final", "overrides.json"]


def test_a_new_training_in_the_same_folder_knows_nothing_of_what_was_set(script: Make) -> None:
    first = script(learning_rate=1e-3)
    first.ask(3, "set", {"learning_rate": 4e-3})
    first.run()
    rates = Rates()
    second = script(rates, learning_rate=1e-3)
    second.run()
    assert rates.seen[1] == 1e-3
    assert "overrides.json" not in second.saved()


def test_the_end_comes_earlier_at_once_and_later_with_the_next_resume(script: Make) -> None:
    first = script(save_strategy="steps", save_steps=4)
    first.ask(2, "set", {"max_steps": 12})
    first.ask(3, "set", {"max_steps": 5}, "cmd-2")
    first.run()
    assert first.status["step"] == 5
    assert "next resume" in str(first.outcome().message)
    second = script(save_strategy="steps", save_steps=4)
    second.ask(5, "set", {"max_steps": 10})
    assert second.args.max_steps == 5
    third = script(save_strategy="steps", save_steps=4)
    (third.output / "overrides.json").write_text('{"max_steps": 10}')
    third = script(save_strategy="steps", save_steps=4)
    third.run(resume=True)
    assert third.status["step"] == 10


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"save_steps": 3}, "save_strategy='no'"),
        ({"eval_steps": 3}, "eval_strategy='no'"),
    ],
)
def test_what_would_have_no_effect_is_refused(script: Make, data: dict[str, Any], reason: str) -> None:
    one = script()
    one.ask(2, "set", data)
    one.run()
    assert one.outcome().state == "failed"
    assert reason in str(one.outcome().message)


def test_what_waits_at_the_end_has_failed(script: Make) -> None:
    class Late(TrainerCallback):
        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 8:
                one.board.submit("save_checkpoint", None, "cmd-1")

    one = script(Late())
    one.run()
    assert (one.outcome().state, one.outcome().message) == ("failed", "training had ended")


def test_values_that_are_no_json_come_out_as_json(script: Make, jobs: Path) -> None:
    import numpy

    seen: dict[str, Any] = {}

    def log() -> None:
        one.trainer.log(
            {
                "nan": float("nan"),
                "inf": float("inf"),
                "numpy": numpy.float32(1.5),
                "tensor": torch.tensor(2.5),
                "vector": torch.ones(3),
            }
        )
        endpoint = find_endpoint(jobs, "mine")
        assert endpoint is not None
        seen.update(ControlClient(endpoint).status())

    one = script()
    one.trainer.add_callback(At(2, log))
    one.run()
    assert (seen["nan"], seen["inf"], seen["numpy"], seen["tensor"]) == ("NaN", "Infinity", 1.5, 2.5)
    assert "vector" not in seen
    json.loads((jobs / "mine/status.json").read_text(), parse_constant=pytest.fail)


def test_a_second_training_of_the_callback_is_steered_too(script: Make) -> None:
    one = script(max_steps=2)
    one.run()
    assert one.status["state"] == "completed"
    one.ask(2, "graceful_stop")
    one.args.max_steps = 4
    one.trainer.train()
    assert (one.status["state"], one.status["step"]) == ("stopped", 2)


def test_a_journal_is_kept_where_it_is_asked_for(script: Make, tmp_path: Path, jobs: Path) -> None:
    one = script(journal=tmp_path / "runs/mine")
    one.ask(2, "save_checkpoint")
    one.run()
    one.end()
    (journal,) = (tmp_path / "runs/mine/journal").iterdir()
    kinds = {json.loads(line)["type"] for line in journal.read_text().splitlines()}
    assert {"launch", "metric", "event", "checkpoint"} <= kinds
    assert json.loads((tmp_path / "runs/mine/status.json").read_text())["state"] == "completed"
    assert json.loads((jobs / "mine/status.json").read_text())["state"] == "completed"


def test_a_fault_of_ours_does_not_end_the_training(script: Make, caplog: pytest.LogCaptureFixture) -> None:
    one = script()

    def break_it() -> None:
        one.board.take = None

    one.trainer.add_callback(At(2, break_it))
    one.ask(3, "save_checkpoint")
    one.run()
    del one.board.take
    assert one.trainer.state.global_step == 8
    assert "the training run continues" in caplog.text


def test_a_home_that_cannot_be_written_is_said_and_the_training_goes_on(
    script: Make, jobs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.write_text("a file where the folder should be")
    one = script()
    one.run()
    assert one.trainer.state.global_step == 8
    assert one.control.job_id is None
    assert "cannot be controlled" in caplog.text


def test_the_class_takes_the_documents_arguments_by_position() -> None:
    TrainerControlCallback("mine", 0, "localhost", False, False)
