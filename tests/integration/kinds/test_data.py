"""`taskType: data` through a real worker: the example, what a training would read, a bad row, a kill, and parts."""

from __future__ import annotations

import hashlib
import json
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.libraries import required

if TYPE_CHECKING:
    from tests.integration.kinds.conftest import Bench

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(900)]

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "workflows"


@pytest.fixture(autouse=True)
def _libraries() -> None:
    required("datasets")


def lines(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(url) as answer:
        return [json.loads(line) for line in answer.read().splitlines()]


def test_the_example_reads_what_its_first_task_wrote_and_counts_every_row(bench: Bench) -> None:
    ids = bench.submit(EXAMPLES / "data.yaml")
    maths, mixed = bench.result(ids["maths"]), bench.result(ids["mixed"])
    read, changed, kept, converted, deduped = maths["steps"]
    assert (read["rows_out"], changed["rows_out"], kept["rows_in"]) == (400, 400, 400)
    assert converted["rows_in"] == kept["rows_out"] < 400
    assert deduped["rows_in"] - deduped["rows_out"] == deduped["duplicates"]
    assert maths["jsonl_export"]["record_count"] == deduped["rows_out"] == maths["rows"]
    assert "recognized prompts and responses (question, answer)" in maths["recognised"][0]

    assert [each["name"] for each in mixed["files"]] == ["train.jsonl", "test.jsonl"]
    assert mixed["steps"][-1]["parts"] == {"train": mixed["files"][0]["rows"], "test": mixed["files"][1]["rows"]}
    rows = [row for each in mixed["files"] for row in lines(each["url"])]
    assert len(rows) == mixed["rows"]
    assert {tuple(row) for row in rows} == {("prompt", "response")}
    assert {row["prompt"] for row in lines(maths["jsonl_export"]["url"]) if "prompt" in row} == set()
    asked = {row["messages"][0]["content"] for row in lines(maths["jsonl_export"]["url"])}
    assert asked <= {row["prompt"] for row in rows}, "all rows were taken"
    (train, *_) = mixed["files"]
    content = (bench.folder(ids["mixed"]) / "train.jsonl").read_bytes()
    assert train["sha256"] == hashlib.sha256(content).hexdigest() == bench.files(ids["mixed"])["train.jsonl"].sha256


def test_a_row_that_does_not_fit_is_named(bench: Bench) -> None:
    rows = [{"prompt": "a", "response": "b"}, {"prompt": "c", "response": None}]
    task = {"taskType": "data", "sources": [{"name": "mine", "rows": rows}], "steps": [{"convert": "messages"}]}
    assert "Step 1 (convert) failed on row 2 of mine: 'response' holds nothing" in bench.error(task)
    dropped = bench.result(bench.submit({**task, "on_bad": "drop"})["task"])
    assert (dropped["rows"], dropped["bad_rows"]) == (1, 1)
    nowhere = {"taskType": "data", "sources": [{"jsonl": {"worker_path": "/nowhere/rows.jsonl"}}]}
    assert "spec.sources.0.jsonl.worker_path: on a worker a workflow may only use" in bench.error(nowhere)


def test_a_killed_task_ends_with_the_same_rows(bench: Bench, tmp_path: Path) -> None:
    required("datasketch")
    file = tmp_path / "many.jsonl"
    file.write_text("".join(json.dumps({"t": f"row {n} of many, {n * 7919} and {n * n}"}) + "\n" for n in range(6000)))
    task = {
        "taskType": "data",
        "sources": [{"jsonl": {"path": str(file)}}],
        "steps": ["shuffle", {"dedupe": {"near": {}}}],
        "retry": {"max_attempts": 3, "backoff_s": 0},
    }
    task_id = bench.submit(task)["task"]
    folder = bench.folder(task_id)
    bench.until(lambda: list(folder.glob("rows/*.json")), task_id)
    psutil.Process(json.loads((folder / "process.json").read_text())["pid"]).kill()
    found = bench.result(task_id)
    assert bench.client.tasks.get(task_id).attempts == 2
    assert (found["steps"][0]["rows_out"], found["steps"][1]["rows_in"]) == (6000, 6000), "counted before the kill"
    assert found["steps"][2]["rows_in"] == 6000
    assert found["rows"] == 6000 - found["steps"][2]["near_duplicates"]
    assert not (folder / "rows").exists()


def test_parts_of_a_spread_task_become_one_file_in_order(bench: Bench) -> None:
    task = {
        "taskType": "data",
        "sources": [{"rows": [{"n": n} for n in range(11)]}],
        "steps": [{"filter": {"column": "n", "ge": 6}}],  # the first part is left with nothing
        "parallel": {"enabled": True, "max_shards": 2},
    }
    found = bench.result(bench.submit(task)["task"])
    assert [row["n"] for row in lines(found["jsonl_export"]["url"])] == list(range(6, 11))
    assert found["jsonl_export"]["record_count"] == 5
    assert found["usage"]["rows_written"] == 5
