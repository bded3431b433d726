"""Two stages on two machines: what the first has trained goes to the second, over HTTP or over a shared folder."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.libraries import required
from tunefleet.artifacts import hash_file
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(600)]

QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
STAGES = """apiVersion: mloc/v1
kind: LoRASFTTask
metadata: {{name: two-stage}}
spec:
  taskType: lora_sft
  resources: {{replicas: 1, hardware: {{cpu: "1", memory: "256Mi"}}}}
  model: {{source: {{type: huggingface, identifier: "builtin:gsm8k-llama-2m"}}}}
  data: {{path: "builtin:gsm8k", prompt_column: question, response_column: answer, max_samples: 16}}
  lora: {{r: 2, alpha: 4, dropout: 0.0, bias: none, target_modules: [q_proj], task_type: CAUSAL_LM, use_rslora: false}}
  training: {{max_steps: 2, batch_size: 2, max_seq_length: 64, learning_rate: 1e-2, save_strategy: "no"}}
  output: {output}
  stages:
    - name: gsm8k-stage
      spec: {{resources: {{tags: [one]}}}}
    - name: humaneval-stage
      spec:
        resources: {{tags: [two]}}
        checkpoint: {{load: {load}}}
"""


class Machine:
    """A worker as a process of its own; each that the server ever meets has another id."""

    made = itertools.count()

    def __init__(self, fleet: LocalFleet, name: str, results: Path, **variables: str) -> None:
        self.results = results
        key = (fleet.data / "keys" / "worker.key").read_text().strip()
        environment = {**os.environ, **QUIET, **variables, "TUNEFLEET_WORKER_KEY": key, "WORKER_TAGS": name}
        environment |= {"TUNEFLEET_HOME": str(results / "home"), "ORCHESTRATOR_BASE_URL": fleet.url}
        environment["RESULTS_DIR"] = str(results)
        results.mkdir(parents=True)
        with (results / "said.log").open("wb") as log:
            command = [sys.executable, "-m", "tunefleet.worker", "--id", f"{name}-{next(self.made)}"]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def end(self) -> None:
        """Stop it and its job."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    required("trl")
    data = tmp_path_factory.mktemp("server")
    made = LocalFleet(data, port=free_port(), workers=0, environment=QUIET, save_client=False)
    with made:
        yield made


def run_stages(fleet: LocalFleet, document: str, *machines: Machine) -> list[Any]:
    """Submit the stages and return them, completed."""
    try:
        with Client(fleet.url, fleet.key, patience_s=30) as client:
            tasks = client.submit(document).workflow.tasks
            ended = [client.tasks.wait(task.id, timeout_s=240) for task in tasks]
            for machine, task in zip(machines, ended, strict=True):
                assert task.status == "completed", f"{task.error}\n{(machine.results / 'said.log').read_text()}"
            return [client.tasks.get(task.id) for task in ended]
    finally:
        for machine in machines:
            machine.end()


def adapter(folder: Path) -> str:
    return hash_file(folder / "adapter_model.safetensors")[0]


@pytest.mark.story
def test_two_stage_lora_over_http_artifacts(tmp_path: Path, fleet: LocalFleet) -> None:
    output = (
        f"{{destination: {{type: http, url: '{fleet.url}/api/v1/results', method: POST, timeoutSec: 15, headers: "
        "{Authorization: 'Bearer dev-token', Content-Type: application/json}}, artifacts: [responses.json, final_lora]}"
    )
    load = "{type: http, url: '${gsm8k-stage.result.final_lora_archive_url}'}"
    one, two = (Machine(fleet, name, tmp_path / name) for name in ("one", "two"))
    first, second = run_stages(fleet, STAGES.format(output=output, load=load), one, two)

    result = first.result["result"]
    folder = tmp_path / "one" / first.id
    assert result["task_id"] == first.id
    assert (result["training_successful"], result["error_message"], result["model_name"]) == (
        True,
        None,
        "builtin:gsm8k-llama-2m",
    )
    assert (result["output_dir"], result["checkpoints_dir"]) == (str(folder), str(folder / "checkpoints"))
    assert result["final_lora_path"] == str(folder / "final_lora")
    assert result["final_lora_archive"] == "final_lora.tar.gz"
    assert result["final_lora_archive_path"] == str(folder / "final_lora.tar.gz")
    assert result["final_lora_archive_bytes"] == (folder / "final_lora.tar.gz").stat().st_size
    assert result["final_lora_archive_uploaded"] is True
    url = result["final_lora_archive_url"]
    assert url.startswith(f"{fleet.url}/api/v1/results/{first.id}/files/final_lora.tar.gz?")
    assert httpx.get(url).content == (folder / "final_lora.tar.gz").read_bytes()

    begun = tmp_path / "two" / second.id / "imported_checkpoint" / "extracted" / "final_lora"
    assert adapter(begun) == adapter(folder / "final_lora"), "the second stage begins with what the first has trained"
    assert adapter(tmp_path / "two" / second.id / "final_lora") != adapter(begun)

    envelope = json.loads((folder / "results.json").read_bytes())
    assert (envelope["task_id"], envelope["result"]) == (first.id, json.loads((folder / "responses.json").read_bytes()))
    entries = {entry["name"]: entry for entry in json.loads((folder / "manifest.json").read_bytes())["entries"]}
    assert {name for name, entry in entries.items() if entry["required"]} == {
        "responses.json", "logs", "artifacts", "final_lora",
    }  # fmt: skip
    assert entries["final_lora"]["status"] == "present"
    assert entries["final_lora.tar.gz"]["sha256"] == hash_file(folder / "final_lora.tar.gz")[0]


@pytest.mark.parametrize(
    "load",
    [
        pytest.param("{path: '${gsm8k-stage.result.final_lora_path}'}", id="shared-path"),
        pytest.param("{type: local, taskId: '${gsm8k-stage.task_id}'}", id="task-id"),
    ],
)
def test_fault_15_and_16_stages_need_no_http_output_on_one_mount_or_by_task_id(
    tmp_path: Path, fleet: LocalFleet, load: str
) -> None:
    mount = tmp_path / "mount"
    shared = {"TUNEFLEET_SHARED_DIRS": str(mount)} if "path" in load else {}
    one, two = (Machine(fleet, name, mount / name, **shared) for name in ("one", "two"))
    first, second = run_stages(fleet, STAGES.format(output="{destination: {type: local}}", load=load), one, two)
    result = first.result["result"]
    assert (result["final_lora_archive"], result["final_lora_archive_uploaded"]) == (None, False)
    assert not (mount / "one" / first.id / "final_lora.tar.gz").exists(), "no archive without an HTTP output"
    said = (mount / "two" / second.id / "job.json").read_text()
    began = json.loads(said)["inputs"]
    begun = Path(next(iter(began.values())))
    assert begun.is_relative_to(mount / "one" if "path" in load else mount / "two" / second.id)
    assert adapter(begun) == adapter(mount / "one" / first.id / "final_lora")
    assert adapter(mount / "two" / second.id / "final_lora") != adapter(begun)
