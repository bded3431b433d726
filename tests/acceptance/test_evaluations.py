"""The kind `evaluate` through a real worker: the example, a comparison, a kill, and what cannot be evaluated."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.story import until
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.cli.main import run
from tunefleet.client import Client
from tunefleet.runtime import envs
from tunefleet.schemas.api import TaskDetail
from tunefleet.schemas.job_folder import JobFolder

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(400)]

PATIENCE_S = 300.0
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "workflows" / "evaluate.yaml"
MODEL = {"source": {"identifier": "builtin:gsm8k-llama-2m"}}
ROWS = {"path": "builtin:gsm8k", "prompt_column": "question", "response_column": "answer"}


@pytest.fixture
def client(fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("TUNEFLEET_URL", fleet.url)
    monkeypatch.setenv("TUNEFLEET_KEY", fleet.key)
    with Client(fleet.url, fleet.key, patience_s=30) as made:
        yield made


MATCH_NOTHING = {"extract": "regex", "pattern": "@@(.*)@@"}


def document(**spec: Any) -> str:
    whole = {"taskType": "evaluate", "model": MODEL, "retry": {"max_attempts": 3, "backoff_s": 0}} | spec
    return json.dumps({"apiVersion": "tunefleet/v1", "metadata": {"name": "measured"}, "spec": whole})


def result(task: TaskDetail) -> dict[str, Any]:
    assert task.status == "completed", (task.error, task.why)
    assert task.result is not None
    found: dict[str, Any] = task.result["result"]
    return found


def test_the_example_trains_measures_compares_and_goes_on_through_its_gate(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted = client.submit(EXAMPLE)
    flow = client.workflows.wait(submitted.workflow.id, timeout_s=PATIENCE_S)
    tasks = {task.name: client.tasks.get(task.id) for task in flow.tasks}
    assert flow.status == "completed", [(task.name, task.error, task.why) for task in flow.tasks]
    base, tuned = result(tasks["base"]), result(tasks["tuned"])

    # The adapter was really on it.
    before, after = base["metrics"]["loss"], tuned["metrics"]["loss"]
    assert after["high"] < before["low"], (before, after)
    assert (tuned["passed"], base["passed"]) == (True, None)
    assert tasks["publish"].status == "completed"
    assert str(after["value"]) in result(tasks["publish"])["items"][0]["output"]
    for measured in (base, tuned):
        loss, accuracy = measured["metrics"]["loss"], measured["metrics"]["accuracy"]
        assert loss["low"] < loss["value"] < loss["high"]
        assert measured["metrics"]["perplexity"]["value"] == pytest.approx(math.exp(loss["value"]))
        assert (loss["n"], accuracy["n"], accuracy["low"] < accuracy["high"]) == (32, 12, True)

    # The exact mean over tokens, from the rows themselves.
    folder = client.tasks.fetch_output(tasks["tuned"].id, "items", tmp_path / "items")
    rows = [json.loads(line) for line in (folder / "loss.jsonl").read_text().splitlines()]
    assert math.fsum(row["loss_sum"] for row in rows) / sum(row["tokens"] for row in rows) == after["value"]
    verdicts = [json.loads(line) for line in (folder / "exact_match.jsonl").read_bytes().splitlines()]
    assert [each["index"] for each in verdicts] == list(range(12))
    assert verdicts[0]["wanted"] == "18"
    points = client.tasks.metrics(tasks["tuned"].id, series="evaluation").points
    assert points[0].values["loss"] == pytest.approx(after["value"])

    assert base["fingerprint"] == tuned["fingerprint"]
    assert run(["compare", tasks["base"].id, tasks["tuned"].id, "--json"]) == 0
    told = {row["metric"]: row for row in json.loads(capsys.readouterr().out)["metrics"]}
    change = told["loss"]["differences"][1]
    assert change["verdict"] == "better"
    assert change["value"] == pytest.approx(after["value"] - before["value"])
    apart = sum(each["high"] - each["low"] for each in (before, after))
    assert change["high"] - change["low"] < apart, "pairs know more than each by itself"
    assert 0 <= told["accuracy"]["differences"][1]["p"] <= 1
    assert run(["compare", tasks["base"].id, tasks["tuned"].id]) == 0
    assert "better" in capsys.readouterr().out


def test_a_killed_evaluation_goes_on_with_what_it_has_and_another_measure_is_not_compared(
    client: Client, fleet: LocalFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {**ROWS, "split": "test[:200]"}
    spec = {"evaluations": [{"type": "loss", "data": data, "batch_size": 1, "max_seq_length": 128}]}
    killed = client.submit(document(**spec)).task_id
    folder = fleet.results_dir() / killed
    until(lambda: list((folder / "evaluations").glob("loss-*.jsonl")), "the first rows", within_s=PATIENCE_S)
    (kept,) = (folder / "evaluations").glob("loss-*.jsonl")
    until(lambda: kept.read_bytes().count(b"\n") >= 4, "some rows", within_s=PATIENCE_S)
    first = kept.read_bytes()
    os.kill(json.loads(JobFolder(folder).process_json.read_bytes())["pid"], signal.SIGKILL)
    whole = result(client.tasks.wait(killed, timeout_s=PATIENCE_S))
    assert kept.read_bytes().startswith(first[: first.rindex(b"\n") + 1]), "what was measured is kept"
    indices = [json.loads(line)["index"] for line in kept.read_bytes().splitlines()]
    assert len(indices) == len(set(indices)) == whole["evaluations"][0]["data"]["rows"], "and not measured again"

    other = {"evaluations": [{"type": "loss", "data": {**ROWS, "split": "test[200:208]"}}]}
    again = client.submit(document(**other)).task_id
    result(client.tasks.wait(again, timeout_s=PATIENCE_S))
    assert run(["compare", killed, again]) != 0
    assert "the rows differ" in " ".join(capsys.readouterr().err.split())
    assert run(["compare", killed, again, "--force", "--json"]) == 0
    (row, _) = json.loads(capsys.readouterr().out)["metrics"]
    assert (row["comparable"], row["differences"][1]) == (False, None)
    assert row["values"][0]["value"] == whole["metrics"]["loss"]["value"]


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        ({"type": "loss", "data": {**ROWS, "response_column": "reply"}}, "has no column 'reply'"),
        (
            {"type": "exact_match", "data": {**ROWS, "response_column": "question"}, "match": MATCH_NOTHING},
            "has nothing that match.extract: regex can extract",
        ),
    ],
    ids=["column", "reference"],
)
def test_what_cannot_be_measured_says_so(client: Client, evaluation: dict[str, Any], said: str) -> None:
    task = client.tasks.wait(client.submit(document(evaluations=[evaluation])).task_id, timeout_s=PATIENCE_S)
    assert (task.status, len(task.attempt_list)) == ("failed", 1)
    assert said in str(task.error)


def test_tasks_of_lm_eval_that_travel_with_the_document(
    client: Client, tmp_path: Path, missing: Callable[[str], None]
) -> None:
    reason = envs.reason("lm-eval")
    if reason is not None:
        missing(reason)
    own = tmp_path / "own"
    own.mkdir()
    (own / "parity.yaml").write_text(PARITY)
    rows = [{"question": f"Is {number} even or odd?", "label": number % 2} for number in range(8)]
    (own / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    harness = {"type": "lm_eval", "tasks": ["parity"], "include_path": "./own", "batch_size": 4}
    (tmp_path / "task.yaml").write_text(document(evaluations=[harness]))
    found = result(client.tasks.wait(client.submit(tmp_path / "task.yaml").task_id, timeout_s=PATIENCE_S))
    metric = found["metrics"]["parity_acc"]
    assert (metric["n"], metric["unit"], metric["higher_is_better"]) == (8, "share", True)
    assert metric["low"] < metric["value"] < metric["high"]
    assert found["evaluations"][0]["versions"] == {"lm_eval": "0.4.13"}


PARITY = """
task: parity
dataset_path: json
dataset_kwargs: {data_files: {test: questions.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}} The answer is"
doc_to_choice: [" even", " odd"]
doc_to_target: "{{label}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
metadata: {version: 1.0}
"""
