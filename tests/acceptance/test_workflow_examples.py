"""The documents in examples/workflows, with two workers on one machine: over HTTP, then over a real Redis."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.redis.process import RedisProcess
from tests.libraries import required
from tunefleet.artifacts import hash_file
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.schemas.api import TaskDetail

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(300)]

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "workflows"
PATIENCE_S = 240.0
# A worker that rests after a minute without work would make two branches wait for one worker.
SERVER = {"ENABLE_ELASTIC_SCALING": "false", "LOG_FILE": ""}
WORKER = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TUNEFLEET_JOB_SLOTS": "1"}


class Pair:
    """Two workers, as processes of their own, that came over one link."""

    def __init__(self, client: Client, link: str, folder: Path, environment: dict[str, str]) -> None:
        self.client = client
        self.names = [f"{link}-{number}" for number in (1, 2)]
        self.folders = {name: folder / name for name in self.names}
        self._processes = [self._start(name, environment) for name in self.names]

    def _start(self, name: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        results = self.folders[name]
        results.mkdir(parents=True)
        # Not as variables: workers with the same environment share the process that their jobs are forked from.
        own = ["--id", name, "--tags", name, "--results-dir", str(results)]
        with (results / "said.log").open("wb") as log:
            command = [sys.executable, "-m", "tunefleet.worker", *own]
            given = {**os.environ, **WORKER, **environment}
            return subprocess.Popen(command, env=given, stdout=log, stderr=log)

    def await_both(self, link: str) -> None:
        """Return once both are there, over their link."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            there = [each for each in self.client.workers.list().items if each.status == "online"]
            if {each.id for each in there} == set(self.names):
                assert {each.capabilities.link for each in there} == {link}
                return
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def await_room(self, example: str) -> None:
        """Return once each task of an example could go to either worker: one that has registered and not yet said how
        much it takes gets nothing, and all that is submitted meanwhile goes to the other."""
        text = (FOLDER / example).read_text()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            forecasts = self.client.workflows.validate(text, example, dry_run=True).forecasts
            assert forecasts
            room = [{each.worker_id for each in task.workers if each.verdict == "fits"} for task in forecasts]
            if all(found == set(self.names) for found in room):
                return
            assert time.monotonic() < deadline, forecasts
            time.sleep(0.05)

    def run(self, example: str, **overrides: Any) -> dict[str, TaskDetail]:
        """Submit an example and return its tasks, ended, by name."""
        changes = {key.replace("__", "."): value for key, value in overrides.items()}
        submitted = self.client.submit(FOLDER / example, overrides=changes)
        flow = self.client.workflows.wait(submitted.workflow.id, timeout_s=PATIENCE_S)
        assert flow.status == "completed", [(task.name, task.error, task.why) for task in flow.tasks] + [self.said()]
        return {task.name: self.client.tasks.get(task.id) for task in flow.tasks}

    def said(self) -> str:
        return "\n".join((folder / "said.log").read_text() for folder in self.folders.values())

    def leave(self) -> None:
        """Drain them, so that the server knows at once that they are gone; the next pair need not wait for that."""
        for name in self.names:
            self.client.workers.drain(name)
        for process in self._processes:
            process.wait(60)

    def end(self) -> None:
        """Stop what is left of them, and what they run."""
        left = [process for process in self._processes if process.poll() is None]
        for process in left:
            process.send_signal(signal.SIGINT)
        for process in left:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def redis(redis_server: Callable[..., RedisProcess]) -> RedisProcess:
    return redis_server()


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int], redis: RedisProcess
) -> Iterator[LocalFleet]:
    """One server, which both links lead to."""
    required("trl")
    data = tmp_path_factory.mktemp("server")
    environment = {**SERVER, "REDIS_URL": redis.url}
    with LocalFleet(data, port=free_port(), workers=0, environment=environment, save_client=False) as made:
        yield made


@pytest.fixture(scope="module", params=["http", pytest.param("redis")])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, fleet: LocalFleet, redis: RedisProcess
) -> Iterator[Pair]:
    """Two workers that stay for all examples of their link."""
    key = (fleet.data / "keys" / "worker.key").read_text().strip()
    meet = {"http": {"TUNEFLEET_WORKER_KEY": key}, "redis": {"REDIS_URL": redis.url}}[request.param]
    with Client(fleet.url, fleet.key, patience_s=30) as client:
        made = Pair(
            client, request.param, tmp_path_factory.mktemp(request.param), {"ORCHESTRATOR_BASE_URL": fleet.url, **meet}
        )
        try:
            made.await_both(request.param)
            yield made
            made.leave()
        finally:
            made.end()


def outputs(task: TaskDetail) -> list[Any]:
    assert task.result is not None, task.error
    return [each["output"] for each in task.result["result"]["items"]]


def statuses(tasks: dict[str, TaskDetail]) -> dict[str, str]:
    return {name: task.status for name, task in tasks.items()}


def adapter(folder: Path) -> str:
    return hash_file(folder / "adapter_model.safetensors")[0]


def losses(task: TaskDetail) -> dict[str, Any]:
    assert task.result is not None, task.error
    found: dict[str, Any] = task.result["result"]["losses"]
    return found


def test_two_stage_lora_begins_its_second_stage_with_the_adapter_of_the_first_on_another_worker(pair: Pair) -> None:
    one, two = pair.names
    tasks = pair.run(
        "two_stage_lora.yaml",
        **{"stages__gsm8k-stage__spec__resources__tags": [one], "stages__second-stage__spec__resources__tags": [two]},
    )
    first, second = tasks["gsm8k-stage"], tasks["second-stage"]
    assert (first.worker_id, second.worker_id) == (one, two)
    made = pair.folders[one] / first.id / "final_lora"
    begun = pair.folders[two] / second.id / "imported_checkpoint" / "extracted" / "final_lora"
    assert adapter(begun) == adapter(made)
    assert adapter(pair.folders[two] / second.id / "final_lora") != adapter(begun)
    assert losses(second)["held_out_before"] == pytest.approx(losses(first)["held_out_after"], rel=1e-4)
    assert losses(first)["held_out_after"] < losses(first)["held_out_before"]


def test_each_branch_of_the_diamond_trains_on_a_worker_of_its_own(pair: Pair) -> None:
    pair.await_room("diamond.yaml")
    tasks = pair.run("diamond.yaml")
    gentle, bold, compare = tasks["gentle"], tasks["bold"], tasks["compare"]
    assert {gentle.worker_id, bold.worker_id} == set(pair.names)
    assert [task.resolved["training"]["learning_rate"] for task in (gentle, bold) if task.resolved] == [3e-4, 3e-3]
    assert outputs(compare) == [
        f"eval loss at 3e-4 is {losses(gentle)['held_out_after']}",
        f"eval loss at 3e-3 is {losses(bold)['held_out_after']}",
    ]
    assert losses(bold)["held_out_after"] < losses(gentle)["held_out_after"]


@pytest.mark.parametrize("pair", ["http", "redis"], indirect=True, scope="module")
def test_fan_out_gives_each_worker_a_part_and_puts_the_results_together_in_order(pair: Pair) -> None:
    pair.await_room("fan_out.yaml")
    tasks = pair.run("fan_out.yaml")
    parts = [tasks["answers#0"], tasks["answers#1"]]
    assert [outputs(part) for part in parts] == [["one", "two", "three"], ["four", "five", "six"]]
    assert {part.worker_id for part in parts} == set(pair.names)
    assert outputs(tasks["answers"]) == ["one", "two", "three", "four", "five", "six"]
    assert outputs(tasks["summary"]) == ["6 answers", "from one to six"]


@pytest.mark.parametrize(
    ("answer", "ran", "skipped"),
    [
        ("publish", {"publish", "announce"}, {"rework", "retrain"}),
        ("rework", {"rework", "retrain"}, {"publish", "announce"}),
    ],
    ids=["publish", "rework"],
)
def test_the_conditional_skips_what_belongs_to_the_other_answer(
    pair: Pair, answer: str, ran: set[str], skipped: set[str]
) -> None:
    tasks = pair.run("conditional.yaml", graph__nodes__review__spec__data__items=[answer])
    assert statuses(tasks) == {"review": "completed"} | dict.fromkeys(ran, "completed") | dict.fromkeys(
        skipped, "skipped"
    )
    assert all(tasks[name].attempts == 0 for name in skipped)
    if answer == "publish":
        assert outputs(tasks["announce"]) == ["we said that the model is out"]


def test_the_federation_trains_one_adapter_on_both_workers_and_the_next_task_uses_it(pair: Pair) -> None:
    pair.await_room("federated.yaml")
    tasks = pair.run("federated.yaml")
    parts = [tasks["train#0"], tasks["train#1"]]
    assert {part.worker_id for part in parts} == set(pair.names)
    whole = tasks["train"].result
    assert whole is not None
    federation = whole["result"]["federation"]
    made = pair.client.federations.get(federation["id"])
    assert (made.status, made.version, federation["version"]) == ("completed", 2, 2)
    assert federation["contributors"] == ["part-0", "part-1"]
    rows = [part["rows"] for part in federation["parts"]]
    assert sum(rows) == whole["result"]["dataset_size"]
    assert max(rows) <= 64, "half of the rows each"
    # Both ended with the newest version, which is better than the untrained model.
    one, two = (losses(part) for part in parts)
    assert one["held_out_after"] == pytest.approx(two["held_out_after"], rel=1e-5)
    assert one["held_out_after"] < one["held_out_before"]
    version = pair.client.federations.version(federation["id"], 2)
    files = {file.name: file.sha256 for file in pair.client.tasks.files(tasks["train"].id).files}
    assert files["final_lora/adapter_model.safetensors"] == version.sha256
    token = pair.client.federations.token(federation["id"]).token
    told = [file for folder in pair.folders.values() for file in folder.rglob("*") if file.is_file()]
    holders = {file.name for file in told if token.encode() in file.read_bytes()}
    assert holders == {".federation.json"}
    assert all(file.stat().st_mode & 0o077 == 0 for file in told if file.name in holders)
    assert outputs(tasks["use"])[0]
