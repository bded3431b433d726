"""The chains of inference and training on a real worker: each stage goes on from what the one before has left."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.schemas.api import TaskDetail
from tunefleet.schemas.job_folder import JobFolder, JobProcess

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(400)]

PATIENCE_S = 240.0
MODEL = "builtin:gsm8k-llama-2m"
FOLDER = Path(__file__).resolve().parents[2] / "examples" / "workflows"


@dataclass
class Site:
    """A server with one worker, which has one slot: tasks wait for each other."""

    fleet: LocalFleet
    client: Client

    def run(self, document: str | Path, **overrides: Any) -> dict[str, TaskDetail]:
        """Submit and return the tasks, ended, by name."""
        submitted = self.client.submit(document, overrides=overrides)
        flow = self.client.workflows.wait(submitted.workflow.id, timeout_s=PATIENCE_S)
        return {task.name: self.client.tasks.get(task.id) for task in flow.tasks}

    def folder(self, task: TaskDetail) -> JobFolder:
        return JobFolder(self.fleet.results_dir() / task.id)

    def events(self, task: TaskDetail) -> list[dict[str, Any]]:
        """What the launches of a task say, in order."""
        files = self.folder(task).journal_dir.glob("*.jsonl")
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [record for record in sorted(lines, key=lambda record: record["at"]) if record["type"] == "event"]

    def named(self, task: TaskDetail, name: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events(task) if event["name"] == name]


@pytest.fixture(scope="module")
def site(fleet: LocalFleet) -> Iterator[Site]:
    with Client(fleet.url, fleet.key, patience_s=30) as client:
        yield Site(fleet, client)


def result(task: TaskDetail) -> dict[str, Any]:
    assert task.result is not None, (task.status, task.error)
    found: dict[str, Any] = task.result["result"]
    return found


def check_completed(tasks: dict[str, TaskDetail]) -> None:
    assert {task.status for task in tasks.values()} == {"completed"}, {n: task.error for n, task in tasks.items()}


def outputs(task: TaskDetail) -> list[Any]:
    return [item["output"] for item in result(task)["items"]]


def exported(task: TaskDetail) -> list[dict[str, Any]]:
    """The rows of a task's file, as the server gives it out."""
    text = httpx.get(result(task)["jsonl_export"]["url"]).raise_for_status().text
    return [json.loads(line) for line in text.splitlines()]


EQUAL = f"""apiVersion: tunefleet/v1
metadata: {{name: equal}}
spec:
  taskType: inference
  model: {{source: {{identifier: "{MODEL}"}}}}
  inference: {{temperature: 0, max_tokens: 8}}
  postprocess:
    jsonl_export:
      path: artifacts/pairs.jsonl
      fields: {{prompt: prompt, response: output, by: metadata.by, said: {{from: literal, value: "yes"}}}}
      required_fields: [by]
  graph:
    nodes:
      - {{name: gate, spec: {{taskType: echo, model: null, inference: null, postprocess: null,
          data: {{type: list, items: [go]}}}}}}
      - {{name: ada, dependsOn: [gate], spec: {{inference: {{system_prompt: Be brief.}},
          data: {{type: list, items: [one, two], metadata: [{{by: ada}}, {{by: ada}}]}}}}}}
      - {{name: bob, dependsOn: [gate], spec: {{inference: {{system_prompt: Be brief.}},
          data: {{type: list, items: [two, three, two], metadata: [{{by: bob}}, {{by: bob}}, {{by: bob}}]}}}}}}
      - {{name: cid, dependsOn: [gate], spec: {{
          data: {{type: list, items: [two], metadata: [{{by: 7}}]}}}}}}
      - {{name: dan, dependsOn: [gate], spec: {{
          data: {{type: list, items: [one, two], metadata: [{{by: dan}}, {{}}]}}}}}}
"""


def test_equal_tasks_run_as_one_each_with_a_result_and_a_file_of_its_own(site: Site) -> None:
    tasks = site.run(EQUAL)
    ada, bob, cid, dan = (tasks[name] for name in ("ada", "bob", "cid", "dan"))
    assert {name: task.status for name, task in tasks.items()} == {
        "gate": "completed", "ada": "completed", "bob": "completed", "cid": "completed", "dan": "failed",
    }  # fmt: skip
    # One run: ada's. Of eight prompts three are asked with the system prompt, and two without it.
    (started,) = site.named(ada, "inference.started")
    assert started == {"tasks": 4, "items": 8, "questions": 5, "answered": 0}
    assert not site.folder(bob).journal_dir.exists()
    assert [item["prompt"] for item in result(bob)["items"]] == ["two", "three", "two"]
    assert outputs(bob)[0] == outputs(bob)[2] == outputs(ada)[1] != outputs(cid)[0]
    counts = {
        name: [result(tasks[name])["usage"][key] for key in ("computed", "deduplicated")]
        for name in ("ada", "bob", "cid")
    }
    assert counts == {"ada": [2, 0], "bob": [1, 2], "cid": [1, 0]}
    # Everybody's file is its own; values are texts.
    rows = exported(cid)
    assert rows == [{"prompt": "two", "response": outputs(cid)[0], "by": "7", "said": "yes"}]
    assert dan.error is not None
    assert "Item 1 has no 'by'" in dan.error


def test_a_model_learns_what_another_wrote_and_answers_with_the_adapter(site: Site) -> None:
    tasks = site.run(FOLDER / "synthesise.yaml")
    written, trained, answered = (tasks[name] for name in ("synthesise", "train", "answer"))
    assert [task.status for task in tasks.values()] == ["completed"] * len(tasks), [
        task.error for task in tasks.values()
    ]
    items = result(written)["items"]
    assert [list(row.values()) for row in exported(written)] == [
        [item["prompt"], item["output"], item["metadata"]["reference_answer"]] for item in items
    ]
    # The tasks before this test have loaded the same model: its engine was there.
    assert site.named(written, "engine.warm")
    assert not site.named(written, "engine.loaded")
    told = result(trained)["held_out"]["answers"]
    assert result(trained)["data"]["rows"] + result(trained)["held_out"]["rows"] == len(items)
    assert outputs(answered) == [each["after"] for each in told], "as the tuned model, not as the base"
    assert outputs(answered) != [each["before"] for each in told]
    assert site.named(answered, "engine.loaded"), "another model than before"


LOADED = f"""apiVersion: mloc/v1
kind: SFTTask
metadata: {{name: bootstrap}}
spec:
  model: {{source: {{type: huggingface, identifier: "{MODEL}"}}}}
  stages:
    - name: gsm8k-bootstrap
      spec:
        taskType: inference
        data: {{type: dataset, url: "builtin:gsm8k", split: "test[:16]", column: question,
          metadata_columns: {{answer: reference_answer}}}}
        inference: {{system_prompt: "Answer:", chat_template: false, temperature: 0, min_tokens: 4, max_tokens: 12}}
        postprocess:
          jsonl_export:
            path: artifacts/sft_pairs.jsonl
            fields: {{prompt: {{from: metadata, key: prompt}}, response: {{from: output}},
              reference_answer: {{from: metadata, key: reference_answer}}}}
            required_fields: [prompt, response]
    - name: sft-train
      spec:
        taskType: sft
        data:
          jsonl: {{path: "${{gsm8k-bootstrap.result.jsonl_export.path}}",
            url: "${{gsm8k-bootstrap.result.jsonl_export.url}}", prompt_field: prompt, response_field: response}}
          eval: {{fraction: 0.2}}
        training: {{max_steps: 12, batch_size: 4, max_seq_length: 160, learning_rate: 2.0e-3, save_strategy: "no"}}
        evaluate: {{answers: 3, max_new_tokens: 12}}
    - name: infer
      spec:
        taskType: inference
        checkpoint: {{load: {{type: http, url: "${{sft-train.result.final_model_archive_url}}"}}}}
        data: {{type: list, items: [{{node: sft-train, path: result.held_out.answers.prompt}}]}}
        inference: {{chat_template: false, temperature: 0, max_tokens: 12}}
"""


def test_sft_over_http_then_inference_really_uses_the_tuned_model(site: Site) -> None:
    tasks = site.run(LOADED, **{"output.destination": {"type": "http", "url": f"{site.fleet.url}/api/v1/results"}})
    check_completed(tasks)
    export = result(tasks["gsm8k-bootstrap"])["jsonl_export"]
    assert (export["record_count"], export["path"]) == (16, export["url"])
    told = result(tasks["sft-train"])["held_out"]["answers"]
    assert outputs(tasks["infer"]) == [each["after"] for each in told]
    assert outputs(tasks["infer"]) != [each["before"] for each in told]


ROWS = 224
LONG = f"""apiVersion: tunefleet/v1
metadata: {{name: long}}
spec:
  taskType: inference
  model: {{source: {{identifier: "{MODEL}"}}}}
  data: {{type: dataset, url: "builtin:gsm8k", split: "train[:{ROWS}]", column: question}}
  inference: {{temperature: 0, max_tokens: 32}}
  retry: {{max_attempts: 3, backoff_s: 0}}
"""


def test_a_paused_and_then_killed_job_goes_on_and_computes_no_answer_twice(site: Site) -> None:
    task_id = site.client.submit(LONG).task_id
    folder = JobFolder(site.fleet.results_dir() / task_id)
    answers = folder.root / "answers.jsonl"

    def kept() -> bytes:
        found = answers.read_bytes() if answers.exists() else b""
        return found[: found.rfind(b"\n") + 1]

    def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    until(lambda: len(kept().splitlines()) > 1)
    site.client.tasks.pause(task_id)
    until(lambda: site.client.tasks.get(task_id).status == "paused")
    paused = kept()
    site.client.tasks.resume(task_id)
    until(lambda: len(kept()) > len(paused))
    process = JobProcess.model_validate_json(folder.process_json.read_bytes())
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not psutil.pid_exists(process.pid))
    killed = kept()
    task = site.client.tasks.wait(task_id, timeout_s=PATIENCE_S)
    assert task.status == "completed", task.error
    done = [0, *(len(each.splitlines()) - 1 for each in (paused, killed))]
    assert 0 < done[1] < done[2] < ROWS
    assert [each["answered"] for each in site.named(task, "inference.started")] == done
    assert killed.startswith(paused)
    assert kept().startswith(killed), "what was there has stayed"
    keys = [json.loads(line)["key"] for line in kept().splitlines()[1:]]
    assert len(keys) == len(set(keys)) == ROWS, "each was computed once"
    usage = result(task)["usage"]
    assert (usage["computed"], usage["resumed"], usage["num_requests"]) == (ROWS - done[2], done[2], ROWS)


def test_what_cannot_be_used_is_named_and_not_tried_again(site: Site) -> None:
    task_id = site.client.submit(LONG, overrides={"data.column": "nope"}).task_id
    task = site.client.tasks.wait(task_id, timeout_s=PATIENCE_S)
    assert (task.status, task.attempts) == ("failed", 1)
    assert task.error is not None
    assert (
        "builtin:gsm8k (train[:224]) has no column 'nope'. Set `data.column`. It has: answer, question." in task.error
    )
