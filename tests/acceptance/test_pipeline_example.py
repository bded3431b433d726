"""The long example: prompts become rows, rows an adapter, the adapter a model, and that model answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunefleet.artifacts import manifest_digest, scan
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.schemas.api import TaskDetail

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(400)]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "workflows" / "pipeline.yaml"
PATIENCE_S = 360.0


def result(task: TaskDetail) -> dict[str, Any]:
    assert task.result is not None, (task.status, task.error)
    found: dict[str, Any] = task.result["result"]
    return found


def test_synthesise_filter_train_measure_merge_answer(fleet: LocalFleet) -> None:
    with Client(fleet.url, fleet.key, patience_s=30) as client:
        flow = client.workflows.wait(client.submit(EXAMPLE).workflow.id, timeout_s=PATIENCE_S)
        tasks = {task.name: client.tasks.get(task.id) for task in flow.tasks}
        assert flow.status == "completed", {name: task.error for name, task in tasks.items()}
        folders = {name: fleet.results_dir() / task.id for name, task in tasks.items()}

        made, kept = result(tasks["synthesise"]), result(tasks["filter"])
        assert made["jsonl_export"]["record_count"] == made["count"] == 48
        assert kept["steps"][0]["rows_in"] == 48
        assert len((folders["filter"] / "train.jsonl").read_text().splitlines()) == kept["rows"] > 0
        assert result(tasks["train"])["dataset_size"] == kept["rows"], "the training read what the filter left"

        loss = result(tasks["measure"])["metrics"]["loss"]
        assert loss["low"] < loss["value"] < loss["high"]
        merged = result(tasks["merge"])
        assert merged["verification"]["passed"]
        assert [parent["digest"] for parent in merged["parents"]["adapters"]] == [
            manifest_digest(file.entry for file in scan(folders["train"] / "final_lora"))
        ], "what was merged is what was trained"
        answers = result(tasks["answer"])
        assert answers["count"] == 8
        assert all(item["output"] for item in answers["items"])
