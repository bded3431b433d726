"""Rows that the parts of a task export on two workers become the data of the training behind it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.timeout(400)]

EXPORTER = Path(__file__).resolve().parents[2] / "fakes" / "exporter"
"""An executor that exports rows without a model."""
WORDS = ["ada", "bob", "cid", "dan", "eve"]
DOCUMENT = """apiVersion: mloc/v1
kind: SFTTask
metadata: {name: bootstrap}
spec:
  taskType: lora_sft
  model: {source: {type: huggingface, identifier: "builtin:gsm8k-llama-2m"}}
  stages:
    - name: synth
      spec:
        taskType: inference
        parallel: {enabled: true, max_shards: 2}
        data: {type: list, items: [ada, bob, cid, dan, eve]}
        postprocess:
          jsonl_export: {path: artifacts/pairs.jsonl, fields: {prompt: prompt, response: output}}
    - name: train
      spec:
        data:
          jsonl: {url: "${synth.result.jsonl_export.url}", prompt_field: prompt, response_field: response}
        training: {max_steps: 1, batch_size: 1, max_seq_length: 64, save_strategy: "no"}
"""


@pytest.mark.parametrize("destination", ["local", "http"])
def test_a_training_reads_what_the_parts_of_a_stage_have_exported(
    tmp_path: Path, free_port: Callable[[], int], destination: str
) -> None:
    environment = {"TUNEFLEET_WARM_START": "false", "PYTHONPATH": str(EXPORTER)}
    with (
        LocalFleet(tmp_path / "data", port=free_port(), workers=2, environment=environment, save_client=False) as fleet,
        Client(fleet.url, fleet.key) as client,
    ):
        receiver = (
            {"type": "http", "url": f"{fleet.url}/api/v1/results"} if destination == "http" else {"type": "local"}
        )
        run = client.submit(DOCUMENT, overrides={"output.destination": receiver})
        flow = client.workflows.wait(run.workflow.id, timeout_s=240)
        done = {task.name: client.tasks.get(task.id) for task in flow.tasks}
        assert flow.status == "completed", {name: (task.status, task.error) for name, task in done.items()}
        whole, train = done["synth"], done["train"]
        assert whole.result is not None
        export = whole.result["result"]["jsonl_export"]
        body = httpx.get(export["url"]).content
        fetched = fleet.data.glob(f"results*/{train.id}/inputs/*/pairs.jsonl")
        copies = [path.read_bytes() for path in fetched]
    assert [json.loads(line) for line in body.splitlines()] == [{"prompt": w, "response": w.upper()} for w in WORDS]
    assert (export["record_count"], len(export["parts"])) == (5, 2)
    assert copies == [body], "the worker has fetched the whole file"
