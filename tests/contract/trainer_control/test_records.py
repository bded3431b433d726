"""What `attach` writes is what `wire` says, and it needs nothing else of ours to write it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import tunefleet.trainer_control
from tunefleet.schemas.control import CommandState, ControlCommand, Endpoint, SetData
from tunefleet.schemas.job_folder import Job, JobStatus
from tunefleet.schemas.journal import (
    ANY_RECORD,
    CheckpointRecord,
    EventRecord,
    LaunchRecord,
    MetricRecord,
    PredictionRecord,
    ProgressRecord,
)
from tunefleet.trainer_control import JobSession, open_session
from tunefleet.trainer_control.control.command_queue import COMMANDS, CommandQueue
from tunefleet.trainer_control.control.discovery import EndpointFolder
from tunefleet.trainer_control.control.overrides import SETTABLE
from tunefleet.trainer_control.journal.status import FINAL_STATES


@pytest.fixture
def session(tmp_path: Path) -> Iterator[JobSession]:
    job = Job(
        job_id="task-1", task_id="task-1", attempt=2, launch="launch-1", kind="sft", name="x", program="p:f", spec={}
    )
    (tmp_path / "job.json").write_text(job.model_dump_json())
    session = open_session(tmp_path)
    yield session
    session.close()


def test_every_record_is_one_that_wire_knows_and_keeps_its_fields(session: JobSession) -> None:
    journal = session.journal
    journal.metric(5, {"loss": math.nan, "lr": 1e-4}, series="train-2", epoch=0.5, window=(1, 5))
    journal.metric(5, {"eval_loss": 1})
    journal.event("training.started", "Started.", "warning", {"n": 1})
    journal.checkpoint(5, "checkpoint-5", "d" * 64, 123, 0.25)
    journal.prediction(5, 0, "prompt", "output", "reference")
    journal.progress(
        "training", step=5, max_steps=9, step_time_s=0.1, tokens_per_s=3.0, eta_s=math.inf, rss_bytes=1, gpu_bytes=None
    )
    session.close()
    lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
    records = [ANY_RECORD.validate_python(line) for line in lines]
    assert {type(record) for record in records} == {
        LaunchRecord,
        MetricRecord,
        EventRecord,
        CheckpointRecord,
        PredictionRecord,
        ProgressRecord,
    }
    assert [record.seq for record in records] == list(range(len(records)))
    for line, record in zip(lines, records, strict=True):
        # Nothing is written that wire would silently drop.
        assert line.keys() <= type(record).model_fields.keys()
    metric = next(record for record in records if isinstance(record, MetricRecord))
    assert (metric.series, metric.step, metric.epoch, metric.window) == ("train-2", 5, 0.5, (1, 5))
    assert metric.values == {"loss": "NaN", "lr": 1e-4}


def test_a_status_has_every_field_of_its_model(session: JobSession) -> None:
    session.status.write(state="running", phase="training", step=1, max_steps=2, values={"loss": 1.0})
    session.fail("Out of memory.", "oom", "Traceback")
    written = json.loads((session.folder / "status.json").read_text())
    assert written.keys() == JobStatus.model_fields.keys()
    assert JobStatus.model_validate(written).error_kind == "oom"
    assert set(JobStatus.model_fields["state"].annotation.__args__) - FINAL_STATES == {"starting", "running"}  # type: ignore[union-attr]


def test_an_endpoint_has_every_field_of_its_model(tmp_path: Path) -> None:
    written = EndpointFolder(tmp_path, "task-1", tmp_path).publish(host="localhost", port=1, token="t")
    assert written.keys() == Endpoint.model_fields.keys()


def test_commands_are_those_of_wire_and_their_stored_states_too(tmp_path: Path) -> None:
    assert set(COMMANDS) == {command.value for command in ControlCommand}
    board = CommandQueue(tmp_path)
    for name in COMMANDS:
        board.submit(name, {"learning_rate": 1e-4} if name == "set" else None)
    stored = json.loads((tmp_path / "commands.json").read_text())["commands"]
    assert [CommandState.model_validate(command).state for command in stored] == ["pending"] * len(COMMANDS)


def test_what_can_be_set_is_what_wire_says() -> None:
    assert set(SETTABLE) == set(SetData.model_fields)


def test_it_loads_by_file_location_where_there_is_no_tunefleet(tmp_path: Path) -> None:
    folder = Path(tunefleet.trainer_control.__file__).parent
    (tmp_path / "job.json").write_text(json.dumps({"job_id": "j", "launch": "launch-1"}))
    program = f"""
        import importlib.util, sys

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {{"tunefleet", "pydantic", "torch", "transformers", "psutil", "httpx"}}:
                    raise ModuleNotFoundError(name)

        sys.meta_path.insert(0, Absent())
        spec = importlib.util.spec_from_file_location(
            "attached", {str(folder / "__init__.py")!r}, submodule_search_locations=[{str(folder)!r}]
        )
        attach = importlib.util.module_from_spec(spec)
        sys.modules["attached"] = attach
        spec.loader.exec_module(attach)
        session = attach.open_session({str(tmp_path)!r})
        session.journal.metric(1, {{"loss": 1.0}})
        session.finish()
        session.close()
        from attached.control.control_server import ControlServer
        foreign = [name for name in sys.modules if name.partition(".")[0] == "tunefleet"]
        assert not foreign, foreign
        print("fine")
    """
    ran = subprocess.run(
        [sys.executable, "-S", "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout == "fine\n", ran.stderr
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "completed"
    assert len((tmp_path / "journal" / "launch-1.jsonl").read_text().splitlines()) == 2
