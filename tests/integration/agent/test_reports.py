"""What the backend is told, over real HTTP: in order, once, whatever it answers and however long it is away."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.agent.conftest import Call, StubBackend, until
from tunefleet.agent.jobs.job import AgentJob, AgentRecord
from tunefleet.agent.jobs.reporter import Reporter
from tunefleet.client.backend import JobClient
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.schemas.training_protocol.training import JobState


@pytest.fixture
def stub() -> Iterator[StubBackend]:
    backend = StubBackend()
    backend.up()
    yield backend
    backend.down()


class Written:
    """A job folder that a test writes as a trainer would."""

    def __init__(self, folder: Path, backend: StubBackend, kind: str = "sft") -> None:
        self.folder = JobFolder(folder / "job-1")
        self.folder.journal_dir.mkdir(parents=True)
        self.folder.job_json.write_text(json.dumps({"attempt": 1, "log_base": 0}))
        self.backend = backend
        self.seq = 0
        record = AgentRecord(
            job_id="job-1", name="n", kind=kind, spec={}, order=time.time(), state=JobState.RUNNING, launch="l1",
            backend=backend.url, token="secret",
        )  # fmt: skip
        self.job = AgentJob(self.folder, record, lambda _: None)
        self.reporters: list[Reporter] = []
        self.write("launch", launch="l1", attempt=1)

    def write(self, kind: str, **fields: Any) -> None:
        record = {"seq": self.seq, "at": time.time(), "type": kind, **fields}
        with (self.folder.journal_dir / "l1.jsonl").open("a") as journal:
            journal.write(json.dumps(record) + "\n")
        self.seq += 1

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            self.write(
                "metric", series="train", step=step, epoch=step / 10, values={"loss": 2.0, "learning_rate": 1e-3}
            )

    def say(self, text: str) -> None:
        with self.folder.log.open("a") as log:
            log.write(text)

    def report(self) -> Reporter:
        reporter = Reporter(self.job, JobClient(self.backend.url, "secret"))
        reporter.start()
        self.reporters.append(reporter)
        return reporter

    def end(self, state: JobState = JobState.COMPLETED, **more: Any) -> None:
        self.job.note(state=state, completed_at=time.time(), **more)


@pytest.fixture
def written(tmp_path: Path, stub: StubBackend, request: pytest.FixtureRequest) -> Iterator[Written]:
    found = Written(tmp_path, stub, getattr(request, "param", "sft"))
    yield found
    for reporter in found.reporters:
        reporter.stop()
        reporter.join(5)


@pytest.mark.parametrize("batches", [False, True])
def test_nothing_is_lost_or_doubled_while_the_backend_is_away_and_the_agent_is_restarted(
    written: Written, stub: StubBackend, batches: bool
) -> None:
    stub.batches = batches
    written.steps(1, 3)
    written.say("one\ntwo\nhalf a")
    first = written.report()
    until(lambda: len(stub.taken("job-1", "metrics")) == 3, "the first points are there")
    stub.down()
    written.steps(4, 130)
    written.say(" line\n" + "".join(f"line {n}\n" for n in range(250)) + "no end")
    time.sleep(0.5)
    first.stop()
    first.join(10)

    written.report()  # the next agent on this folder
    written.end()
    stub.up()
    until(lambda: stub.statuses("job-1")[-1:] == ["completed"], "the end is told")
    assert [point["step"] for point in stub.taken("job-1", "metrics")] == list(range(1, 131))
    calls = sum(call.path.endswith("metrics") and call.status == 200 for call in stub.calls)
    assert (calls < 20) if batches else (calls == 130), "what has waited is told at once where that is possible"
    log = [line[22:] for line in stub.log("job-1")]
    assert log == ["one", "two", "half a line", *(f"line {n}" for n in range(250)), "no end"]
    logs = stub.taken("job-1", "logs")
    assert all(len(body["logs"]) <= 100 for body in logs)
    assert [body["offset"] for body in logs] == [sum(len(b["logs"]) for b in logs[:n]) for n in range(len(logs))]
    last = [call.path.rpartition("/")[2] for call in stub.calls if call.status == 200][-1]
    assert last == "status", "the end is told when all else is there"


@pytest.mark.parametrize("before", [None, {"attempt": 3, "log_base": 0}], ids=["nothing", "another attempt"])
def test_what_is_written_before_the_launch_is_told_once(
    written: Written, stub: StubBackend, before: dict[str, int] | None
) -> None:
    """While the inputs are fetched the folder is nobody's yet, or it is the attempt's before."""
    written.folder.job_json.unlink()
    if before is not None:
        written.folder.job_json.write_text(json.dumps(before))
    written.report()
    until(lambda: stub.statuses("job-1") == ["running"], "the start is told")
    time.sleep(0.5)
    written.folder.job_json.write_text(json.dumps({"attempt": 1, "log_base": 0}))
    written.say("one\ntwo\n")
    until(lambda: len(stub.log("job-1")) == 2, "the log is told")
    written.end(JobState.PAUSED)
    until(lambda: stub.statuses("job-1")[-1:] == ["paused"], "the pause is told")
    assert [line[22:] for line in stub.log("job-1")] == ["one", "two"]


def test_what_the_backend_will_never_take_is_skipped_and_said(written: Written, stub: StubBackend) -> None:
    def no_step_0(call: Call) -> tuple[int, dict[str, Any]]:
        refused = call.path.endswith("metrics") and not call.body["step"]
        return (400, {"error": "step is required"}) if refused else (200, {})

    stub.answer = no_step_0
    written.write("metric", series="train", step=0, values={"eval_loss": 3.0})
    written.write("metric", series="train", step=0, values={"eval_loss": 3.0})
    written.steps(1, 2)
    written.report()
    written.end(JobState.FAILED, error="It broke.")
    until(lambda: stub.statuses("job-1")[-1:] == ["failed"], "the end is told")
    assert [point["step"] for point in stub.taken("job-1", "metrics")] == [1, 2]
    assert written.job.record.refused == {"metrics": 2}
    (warning,) = written.job.record.warnings
    assert "step is required" in warning
    assert stub.taken("job-1", "status")[-1]["error"] == "It broke."


@pytest.mark.parametrize(
    ("heals", "batches", "status"),
    [
        pytest.param(False, False, 500, marks=pytest.mark.story),
        (True, False, 500),
        (False, True, 500),
        (True, True, 500),
        (False, False, 503),
        (True, True, 504),
        (False, True, 429),
        (False, False, 307),
        (True, False, 401),
        (False, True, 401),
    ],
)
def test_a_record_that_the_backend_fails_at_keeps_no_other_waiting(
    written: Written, stub: StubBackend, batches: bool, heals: bool, status: int
) -> None:
    """Its database cannot hold step 2, or one of the lines: a 500 each time, as of the original, or its gateway's."""
    broken = threading.Event()
    broken.set()
    stub.batches = batches

    def fails(call: Call) -> tuple[int, dict[str, Any]]:
        bad = '"step": 2,' in json.dumps(call.body) or "poison" in json.dumps(call.body)
        return (status, {"error": "invalid input syntax"}) if bad and broken.is_set() else (200, {})

    stub.answer = fails
    written.steps(1, 3)
    written.say("one\n")
    written.report()
    until(lambda: stub.log("job-1") == stub.log("job-1")[:1] and stub.log("job-1"), "what came behind it", 60)
    written.say("poison\n")
    assert [point["step"] for point in stub.taken("job-1", "metrics")] == [1, 3]
    (said,) = written.job.record.warnings
    assert "fails on some metrics, which are sent again at the end" in said
    assert "invalid input syntax" in said
    until(lambda: written.job.record.refused.get("logs put aside"), "the line is put aside", 60)
    written.say("two\n")
    until(lambda: len(stub.log("job-1")) == 2, "the line behind it")
    if heals:
        broken.clear()
    written.end()
    until(lambda: stub.statuses("job-1")[-1:] == ["completed"], "the end is told")
    steps = [point["step"] for point in stub.taken("job-1", "metrics")]
    assert steps == ([1, 3, 2] if heals else [1, 3])
    assert ("poison" in str(stub.log("job-1"))) is heals
    gone = {} if heals else {"metrics": 1, "logs": 1}
    assert written.job.record.refused == {"metrics put aside": 1, "logs put aside": 1, **gone}


@pytest.mark.parametrize("refused", ["logs", "running", "metrics"])
@pytest.mark.parametrize("status", [503, 302])
def test_a_route_that_a_gateway_never_lets_through_keeps_no_other_waiting(
    written: Written, stub: StubBackend, refused: str, status: int
) -> None:
    def gateway(call: Call) -> tuple[int, dict[str, Any]]:
        running = call.path.endswith("status") and call.body["status"] == "running"
        return (status, {}) if (running if refused == "running" else call.path.endswith(refused)) else (200, {})

    stub.answer = gateway
    written.steps(1, 3)
    written.say("one\n")
    written.report()
    if refused != "metrics":
        until(lambda: len(stub.taken("job-1", "metrics")) == 3, "the points are told", 60)
    if refused != "logs":
        until(lambda: len(stub.log("job-1")) == 1, "the log is told", 60)
    written.end()
    until(lambda: stub.statuses("job-1")[-1:] == ["completed"], "the end is told", 90)
    assert written.job.record.warnings


@pytest.mark.parametrize("status", [500, 400])
def test_a_line_that_is_refused_takes_no_other_with_it(written: Written, stub: StubBackend, status: int) -> None:
    def fails(call: Call) -> tuple[int, dict[str, Any]]:
        return (status, {"error": "no"}) if "poison" in json.dumps(call.body) else (200, {})

    stub.answer = fails
    written.say("".join(f"line {number}\n" if number != 40 else "poison\n" for number in range(120)))
    written.report()
    until(lambda: len(stub.log("job-1")) == 119, "all others are told", 60)
    written.end()
    until(lambda: stub.statuses("job-1")[-1:] == ["completed"], "the end is told")
    assert [line[22:] for line in stub.log("job-1")] == [f"line {n}" for n in range(120) if n != 40]
    assert written.job.record.refused["logs"] == 1


def test_a_status_that_the_backend_fails_at_keeps_nothing_waiting(written: Written, stub: StubBackend) -> None:
    def fails(call: Call) -> tuple[int, dict[str, Any]]:
        running = call.path.endswith("status") and call.body["status"] == "running"
        return (500, {"error": "no such column"}) if running else (200, {})

    stub.answer = fails
    written.steps(1, 3)
    written.say("one\n")
    written.report()
    until(lambda: len(stub.taken("job-1", "metrics")) == 3, "the points are told", 60)
    until(lambda: len(stub.log("job-1")) == 1, "the log is told")
    written.end()
    until(lambda: stub.statuses("job-1")[-1:] == ["completed"], "the end is told")
    until(lambda: written.job.record.told is JobState.COMPLETED, "it is noted")
    told = " ".join(written.job.record.warnings)
    assert "fails on status running, which is sent again later" in told
    assert "no such column" in told


def test_the_summary_of_a_run_is_no_point(written: Written, stub: StubBackend) -> None:
    written.steps(1, 2)
    summary = {"train_runtime": 9.0, "train_samples_per_second": 3.5, "train_loss": 2.1}
    written.write("metric", series="train", step=2, epoch=0.2, values=summary)
    written.report()
    written.end()
    until(lambda: stub.statuses("job-1")[-1:] == ["completed"], "the end is told")
    points = stub.taken("job-1", "metrics")
    assert [(point["step"], point["epoch"], point["train_loss"]) for point in points] == [(1, 0, 2.0), (2, 0, 2.0)]
    assert stub.taken("job-1", "status")[-1]["samples_per_second"] == 3.5


def test_a_busy_backend_is_asked_again(written: Written, stub: StubBackend) -> None:
    troubles = iter([503, 429, 500])
    stub.answer = lambda _: (next(troubles, 200), {})
    written.steps(1, 1)
    written.report()
    written.end()
    until(lambda: stub.statuses("job-1")[-1:] == ["completed"], "the end is told")
    assert len(stub.taken("job-1", "metrics")) == 1
    assert written.job.record.warnings == ()


@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_token_that_is_not_good_ends_the_reports_with_a_clear_sentence(
    written: Written, stub: StubBackend, when: str
) -> None:
    revoked = threading.Event()
    if when == "at once":
        revoked.set()
    stub.answer = lambda _: (401, {"error": "Invalid token"}) if revoked.is_set() else (200, {})
    written.steps(1, 1)
    reporter = written.report()
    if when == "later":
        until(lambda: stub.taken("job-1", "metrics"), "it is reported")
        revoked.set()
        written.steps(2, 2)
    until(lambda: not reporter.alive, "the reports have ended")
    assert "token" in (written.job.record.muted or "")
    assert written.job.record.state is JobState.RUNNING, "the job goes on"


def test_a_point_has_the_names_that_readers_of_either_kind_know(written: Written, stub: StubBackend) -> None:
    written.write("progress", phase="training", step=5, max_steps=10, tokens_per_s=12.5, gpu_bytes=3 << 29)
    values = {"loss": 1.0, "grad_norm": "NaN", "learning_rate": 0.5}
    written.write("metric", series="train", step=5, epoch=1.5, values=values)
    written.write("metric", series="train", step=5, epoch=1.5, values={"eval_loss": 0.0})
    written.write("prediction", step=5, index=0, prompt="p", output="o", reference="r")
    written.report()
    written.end()
    until(lambda: stub.statuses("job-1")[-1:] == ["completed"], "the end is told")
    train, held_out = stub.taken("job-1", "metrics")
    train.pop("timestamp")
    assert train == {
        "step": 5, "epoch": 1, "train_loss": 1.0, "learning_rate": 0.5, "train_perplexity": pytest.approx(2.71828),
        "tokens_per_second": 12.5, "gpu_memory_reserved_gb": 1.5, "total_steps": 10,
    }  # fmt: skip
    assert held_out["perplexity"] == held_out["eval_perplexity"] == 1.0
    (prediction,) = [call.body for call in stub.calls if call.path == "/api/training/local/predictions"]
    known = {"step": 5, "sample_index": 0, "prompt": "p", "prediction": "o", "ground_truth": "r"}
    assert prediction["predictions"][0].items() >= known.items()


@pytest.mark.parametrize("written", ["dpo"], indirect=True)
def test_a_point_of_pairs_has_its_rewards_as_numbers_and_no_perplexity(written: Written, stub: StubBackend) -> None:
    """The exponential of a loss of preferences means nothing."""
    rewards = {"rewards/accuracies": 0.5, "rewards/margins": "NaN", "logps/chosen": -3.0}
    written.write("metric", series="train", step=5, epoch=1.5, values={"loss": 0.7, **rewards})
    written.write("metric", series="train", step=5, epoch=1.5, values={"eval_loss": 0.6, "eval_rewards/margins": 0.1})
    written.report()
    written.end()
    until(lambda: stub.statuses("job-1")[-1:] == ["completed"], "the end is told")
    train, held_out = stub.taken("job-1", "metrics")
    assert train.pop("timestamp") < held_out.pop("timestamp")
    assert train == {"step": 5, "epoch": 1, "train_loss": 0.7, "rewards/accuracies": 0.5}
    assert held_out == {"step": 5, "epoch": 1, "eval_loss": 0.6, "eval_rewards/margins": 0.1}
