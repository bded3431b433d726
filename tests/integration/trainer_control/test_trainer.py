"""The callbacks in a real Hugging Face Trainer: a tiny model, a few steps, on the CPU."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tunefleet import trainer_control
from tunefleet.errors import ConflictError
from tunefleet.runtime.control import ControlClient, find_endpoint
from tunefleet.schemas.job_folder import Job, JobStatus
from tunefleet.schemas.journal import ANY_RECORD, MetricRecord
from tunefleet.trainer_control.checkpoints.manifest import invalid_reason, list_complete


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global At, ControlCallback, LlamaForCausalLM, ROWS, Trainer, TrainingArguments, tiny_config, torch
    pytest.importorskip("torch")
    pytest.importorskip("transformers")

    import torch
    from transformers import LlamaForCausalLM, Trainer, TrainingArguments

    from tests.integration.trainer_control.tiny import ROWS, At, tiny_config
    from tunefleet.trainer_control.callbacks.control_callback import ControlCallback


pytestmark = pytest.mark.torch


class Run:
    """One job folder, trained in this process; each `start` is a launch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.endpoints = folder / "endpoints"
        self.launches = 0
        self.session: trainer_control.JobSession | None = None

    def start(
        self, *, at: tuple[int, str] | None = None, do: At | None = None, **options: Any
    ) -> trainer_control.JobSession:
        self.launches += 1
        job = Job(
            job_id="task-1",
            task_id="task-1",
            attempt=1,
            launch=f"launch-{self.launches}",
            kind="sft",
            name="x",
            program="p:f",
            spec={},
            endpoint_dir=str(self.endpoints),
        )
        (self.folder / "job.json").write_text(job.model_dump_json())
        trainer_control.session._sessions.clear()  # a launch is a process; here one process plays several
        session = self.session = trainer_control.open_session(self.folder)
        callbacks = trainer_control.callbacks_for_job(self.folder)
        if at is not None:
            board = next(item for item in callbacks if isinstance(item, ControlCallback))._board
            callbacks.insert(0, At(at[0], lambda: board.submit(at[1], command_id="cmd-1")))
        if do is not None:
            callbacks.insert(0, do)
        torch.manual_seed(0)
        arguments: dict[str, Any] = {"max_steps": 6, "logging_steps": 4, "save_steps": 3, **options}
        args = TrainingArguments(
            output_dir=str(session.checkpoints_dir),
            per_device_train_batch_size=4,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            **arguments,
        )
        trainer = Trainer(
            model=LlamaForCausalLM(tiny_config()),
            args=args,
            train_dataset=ROWS,  # type: ignore[arg-type]
            eval_dataset=ROWS[:4],  # type: ignore[arg-type]
            callbacks=callbacks,
        )
        try:
            trainer.train(resume_from_checkpoint=str(session.resume.path) if session.resume else None)
            session.finish()
        finally:
            session.close()
        return session

    def records(self, launch: int = 1) -> list[Any]:
        lines = (self.folder / "journal" / f"launch-{launch}.jsonl").read_text().splitlines()
        return [ANY_RECORD.validate_json(line) for line in lines]

    def windows(self, launch: int = 1) -> list[tuple[int, int]]:
        metrics = [record for record in self.records(launch) if isinstance(record, MetricRecord)]
        return [record.window for record in metrics if record.window is not None]

    def status(self) -> JobStatus:
        return JobStatus.model_validate_json((self.folder / "status.json").read_text())

    def command(self) -> dict[str, Any]:
        (command,) = json.loads((self.folder / "commands.json").read_text())["commands"]
        return dict(command)

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "checkpoints").glob("checkpoint-*"))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "task-1")
    run.folder.mkdir()
    yield run
    if run.session is not None:
        with suppress(OSError):
            run.session.close()


def test_windows_tile_the_run_and_a_save_forces_a_log(run: Run) -> None:
    run.start()
    assert run.windows() == [(1, 3), (4, 4), (5, 6)]
    assert [record.step for record in run.records() if record.type == "checkpoint"] == [3, 6]
    assert run.status().state == "completed"
    assert math.isfinite(float(run.status().values["loss"]))
    assert run.status().values.keys() >= {"learning_rate", "epoch"}
    progress = [record for record in run.records() if record.type == "progress"][-1]
    assert progress.rss_bytes > 1 << 20
    assert (progress.step, progress.gpu_bytes) == (6, None)


def test_a_resumed_launch_says_where_it_begins_and_its_windows_go_on(run: Run) -> None:
    run.start(max_steps=3)
    run.start(max_steps=6)
    first = run.records(2)[0]
    checkpoint = next(record for record in run.records(1) if record.type == "checkpoint")
    assert (first.from_step, first.checkpoint) == (3, checkpoint.digest)
    assert run.windows(1) + run.windows(2) == [(1, 3), (4, 4), (5, 6)]


def test_epoch_strategies_save_once_and_log_before(run: Run) -> None:
    run.start(max_steps=-1, num_train_epochs=2, save_strategy="epoch", eval_strategy="epoch", logging_steps=3)
    assert run.windows() == [(1, 3), (4, 6), (7, 8), (9, 9), (10, 12), (13, 15), (16, 16)]
    assert [record.step for record in run.records() if record.type == "checkpoint"] == [8, 16]
    assert [record.step for record in run.records() if record.type == "metric" and "eval_loss" in record.values] == [
        8,
        16,
    ]


def test_a_broken_newest_checkpoint_is_not_resumed_from(run: Run) -> None:
    run.start()
    weights = run.folder / "checkpoints/checkpoint-6/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    session = run.start(max_steps=6)
    assert session.resume is not None
    assert session.resume.step == 3
    assert run.checkpoints() == ["checkpoint-3", "checkpoint-6"]
    assert invalid_reason(run.folder / "checkpoints/checkpoint-6") is None


def test_the_limit_is_ours_and_the_best_one_stays(run: Run) -> None:
    run.start(
        max_steps=8,
        save_steps=1,
        eval_steps=1,
        eval_strategy="steps",
        save_total_limit=1,
        load_best_model_at_end=True,
        learning_rate=1e6,  # every step makes it worse: the first one is the best
        lr_scheduler_type="constant",
    )
    assert run.checkpoints() == ["checkpoint-1", "checkpoint-8"]
    assert [checkpoint.step for checkpoint in list_complete(run.folder / "checkpoints")] == [1, 8]


def test_nothing_is_deleted_before_the_newer_one_is_whole(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def finish(path: Path, *hashed: Any, **known: Any) -> Any:
        seen.append(run.checkpoints())
        return trainer_control.finish_checkpoint(path, *hashed, **known)

    monkeypatch.setattr("tunefleet.trainer_control.checkpoints.finalizer.finish_checkpoint", finish)
    slow = At(5, lambda: time.sleep(0.3))
    run.start(save_steps=2, save_total_limit=1, do=slow)
    assert seen[1][:2] == ["checkpoint-2", "checkpoint-4"]
    assert run.checkpoints() == ["checkpoint-6"]


def test_save_makes_a_checkpoint_that_is_durable(run: Run) -> None:
    run.start(at=(2, "save_checkpoint"), save_strategy="no")
    command = run.command()
    assert (command["state"], command["step"], command["checkpoint"]) == ("durable", 2, "checkpoint-2")
    assert invalid_reason(run.folder / "checkpoints/checkpoint-2") is None
    assert run.windows() == [(1, 2), (3, 4), (5, 6)]
    assert run.status().state == "completed"


def test_stop_ends_at_that_step_and_saves_nothing(run: Run) -> None:
    run.start(at=(2, "graceful_stop"), save_strategy="epoch", eval_strategy="epoch")
    assert (run.status().state, run.status().step) == ("stopped", 2)
    assert run.checkpoints() == []
    assert run.windows() == [(1, 2)]
    assert run.command()["state"] == "applied"


def test_save_and_stop_saves_once_and_stops(run: Run) -> None:
    run.start(at=(2, "save_and_stop"), save_strategy="epoch", eval_strategy="epoch")
    assert (run.status().state, run.status().step, run.checkpoints()) == ("stopped", 2, ["checkpoint-2"])
    assert [record.step for record in run.records() if record.type == "checkpoint"] == [2]
    assert run.command()["state"] == "durable"


def test_abort_acts_at_the_end_of_the_step_and_writes_nothing_more(run: Run) -> None:
    with pytest.raises(SystemExit) as ended:
        run.start(at=(5, "abort"), save_steps=2)
    assert ended.value.code == 9
    assert (run.status().state, run.status().intent, run.status().step) == ("aborted", "abort", 5)
    assert run.checkpoints() == ["checkpoint-2", "checkpoint-4"]
    assert [checkpoint.step for checkpoint in list_complete(run.folder / "checkpoints")] == [2, 4]
    assert max(record.step for record in run.records() if record.type == "metric") == 4


def test_abort_does_not_wait_for_an_evaluation(run: Run) -> None:
    def ask() -> None:
        assert run.session is not None
        endpoint = find_endpoint(run.endpoints, "task-1")
        assert endpoint is not None
        ControlClient(endpoint).send("abort")

    class DuringEvaluation(At):
        def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.act()

    with pytest.raises(SystemExit):
        run.start(do=DuringEvaluation(-1, ask), eval_strategy="steps", eval_steps=2)
    assert (run.status().state, run.status().step) == ("aborted", 2)


def test_the_port_is_open_while_it_trains(run: Run) -> None:
    seen: dict[str, Any] = {}

    def look() -> None:
        endpoint = find_endpoint(run.endpoints, "task-1")
        assert endpoint is not None
        client = ControlClient(endpoint)
        seen.update(client.status(), id=client.send("save_checkpoint").command_id)
        seen["outcome"] = client.state(seen["id"])

    run.start(do=At(3, look), save_strategy="no")
    assert (seen["state"], seen["max_steps"], seen["outcome"].state) == ("running", 6, "pending")
    assert run.command()["state"] == "durable"


def test_a_command_after_the_end_is_refused(run: Run) -> None:
    run.start()
    endpoint = find_endpoint(run.endpoints, "task-1")
    assert endpoint is not None
    with pytest.raises(ConflictError, match="training had ended"):
        ControlClient(endpoint).send("save_checkpoint")


def test_a_loss_that_is_no_number_is_recorded(run: Run) -> None:
    run.start(learning_rate=1e30, logging_nan_inf_filter=False, max_grad_norm=0.0, save_strategy="no", logging_steps=1)
    losses = [record.values["loss"] for record in run.records() if record.type == "metric" and record.window]
    assert "NaN" in losses
    assert run.status().state == "completed"


def test_a_second_trainer_has_its_own_series_and_the_same_port(run: Run) -> None:
    def inner() -> None:
        callbacks = trainer_control.callbacks_for_job(run.folder)
        servers.append(next(item for item in callbacks if isinstance(item, ControlCallback))._server)
        args = TrainingArguments(
            output_dir=str(run.folder / "checkpoints"), max_steps=2, logging_steps=1, report_to=[], use_cpu=True
        )
        model = LlamaForCausalLM(tiny_config())
        Trainer(model=model, args=args, train_dataset=ROWS, callbacks=callbacks).train()  # type: ignore[arg-type]

    servers: list[Any] = []
    run.start(do=At(3, inner), max_steps=3, logging_steps=1, save_strategy="no")
    outer = [
        callback for callback in trainer_control.callbacks_for_job(run.folder) if isinstance(callback, ControlCallback)
    ]
    assert servers == [outer[0]._server] != [None]
    metrics = [record for record in run.records() if isinstance(record, MetricRecord) and record.window]
    windows = {name: [item.window for item in metrics if item.series == name] for name in ("train", "train-2")}
    assert windows == {"train": [(1, 1), (2, 2), (3, 3)], "train-2": [(1, 1), (2, 2)]}
