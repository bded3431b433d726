"""Whole cycles at Gradients: real server, worker, HTTP, S3, training, evaluation and merge; doubles of Gradients' API
and of the Hub hold what is outside.

The candidates are trained here, as somebody at the provider would: on right answers, and on answers that were shuffled
among the questions.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gradients_api import ACCOUNT, KEY, Fault, Gradients, gradients
from tests.fakes.hub import Hub, Repo, serving
from tests.integration.campaign.test_kills import Fleet
from tests.integration.s3.gateway import ACCESS_KEY, BUCKET, SECRET_KEY, Gateway
from tests.libraries import required
from tunefleet.campaign.object_store import PREFIX
from tunefleet.client import Client
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.schemas.api import SubmitRequest
from tunefleet.schemas.campaign import CycleView, ModelVersionView
from tunefleet.spec.documents.campaign_document import CampaignSpec
from tunefleet.workloads import assets

required("trl")
pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(900)]

TOKEN = "hub-token-0123456789"
BASE = "org/base"
NAME = "problems"
CREATE = "/v1/tasks/create"
PATIENCE_S = 600.0
ROWS = 180
PEOPLE = ("Natalia", "Weng", "Betty", "Julie", "James", "Mark", "Ken", "Tina", "Alice", "Bob")
PROBLEMS = (
    ("{who} sold {n} clips and bought as many again. How many clips?", "The clips are counted twice."),
    ("{who} earns {n} dollars an hour for one hour. How many dollars?", "One hour is paid."),
    ("{who} wants a wallet for {n} dollars and has it all. How much is missing?", "Nothing is missing."),
    ("{who} ran {n} miles and walked back. How far?", "It is the way there and back."),
)
"""Like GSM8K's, but so few that a model of two million weights learns in seconds what to answer to which."""
NUMBERS = {"quality_score": 1.0, "synth_loss": 1.0, "rank": 1, "score_reason": "good"}


def problems(count: int, seed: int, *, shuffled: bool = False) -> list[dict[str, str]]:
    """Return rows; shuffled, each question has the answer of another."""
    dice = random.Random(seed)
    made = [
        (question.format(who=dice.choice(PEOPLE), n=dice.randint(2, 99)), answer)
        for question, answer in (PROBLEMS[number % len(PROBLEMS)] for number in range(count))
    ]
    questions, answers = [each for each, _ in made], [each for _, each in made]
    if shuffled:
        dice.shuffle(answers)
    rows = [{"question": question, "answer": answer} for question, answer in zip(questions, answers, strict=True)]
    dice.shuffle(rows)
    return rows


@dataclass
class Outside:
    """What is not ours, and what a test changes there."""

    fleet: Fleet
    api: Gradients
    hub: Hub
    folder: Path

    def train(
        self, client: Client, name: str, base: str, steps: int, *, shuffled: bool = False, whole: bool = False
    ) -> Path:
        """Train an adapter, or all weights, as the provider would, on a worker that happens to be ours."""
        file = self.folder / f"{name}.jsonl"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in problems(240, seed=7, shuffled=shuffled)))
        rows = client.artifacts.push(file, name=name, kind="dataset")
        lora = {"lora": {"r": 16, "alpha": 32, "dropout": 0.0, "target_modules": "all-linear"}}
        body = {
            "taskType": "sft" if whole else "lora_sft",
            "model": {"source": {"identifier": base}},
            "data": {"artifact": rows.id, "prompt_column": "question", "response_column": "answer"},
            "training": {"max_steps": steps, "batch_size": 8, "learning_rate": 3e-3, "save_strategy": "no"},
            **({} if whole else lora),
        }
        document = {"apiVersion": "tunefleet/v1", "metadata": {"name": name}, "spec": body}
        task_id = client.workflows.create(SubmitRequest(document=json.dumps(document)), name).tasks[0].id
        until(lambda: TaskStatus(client.tasks.get(task_id).status).final, task_id)
        task = client.tasks.get(task_id)
        assert task.status == "completed", task.error
        made = client.artifacts.iterate(task_id=task_id)
        (left,) = [each for each in made if each.kind == ("model" if whole else "adapter")]
        return client.artifacts.fetch(left.id, self.folder / f"{name}-{left.kind}")

    def upload(self, repo: str, folder: Path, **changes: bytes) -> None:
        """Put a folder into a public repository of the Hub, as a trainer of the provider would."""
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        self.hub.repos[repo] = Repo(branches={"main": {**files, **changes}})

    def offer(self, **claims: float | None) -> None:
        """Say what the next tasks have made: name → the loss that its trainer claims."""
        self.api.hotkeys = [
            {"hotkey": f"h-{name}", "repo": f"miner/{name}", **NUMBERS, "test_loss": loss}
            for name, loss in claims.items()
        ]


@pytest.fixture(scope="module")
def outside(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int], s3_server: Gateway
) -> Iterator[Outside]:
    folder = tmp_path_factory.mktemp("whole")
    with gradients(statuses=["pending", "awaiting_model_prep", "success"], hours=0.5) as api, serving(TOKEN) as hub:
        environment = {
            "TUNEFLEET_HOME": str(folder / "home"),
            "HF_HOME": str(folder / "hf"),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",  # its own way to send files speaks to a service that the double lacks
            "HF_ENDPOINT": hub.url,
            "HF_USERNAME": "tester",
            "HF_TOKEN": TOKEN,
            "GRADIENTS_API_KEY": KEY,
            "GRADIENTS_API_URL": api.url,
            "GRADIENTS_ACCOUNT_ID": ACCOUNT,
            "TUNEFLEET_GRADIENTS_SETTLE_S": "0.1",
            "CHECK_INTERVAL": "0.3",
            "S3_COMPATIBLE_ENDPOINT": s3_server.endpoint,
            "S3_COMPATIBLE_ACCESS_KEY": ACCESS_KEY,
            "S3_COMPATIBLE_SECRET_KEY": SECRET_KEY,
            "S3_BUCKET_NAME": BUCKET,
            "ENABLE_ELASTIC_SCALING": "false",
            "TUNEFLEET_JOB_SLOTS": "1",
        }
        made = Outside(Fleet(folder, free_port(), environment), api, hub, folder)
        made.upload(BASE, assets.locate("builtin:gsm8k-llama-2m", "model"))
        try:
            made.fleet.start_server()
            made.fleet.start_worker()
            yield made
        finally:
            made.fleet.end()


def spec(s3_server: Gateway, **more: Any) -> CampaignSpec:
    rows = "".join(f"{json.dumps(row)}\n" for row in problems(ROWS, seed=1))
    s3_server.client.put_object(Bucket=BUCKET, Key="rows/problems.jsonl", Body=rows.encode())
    source = {"s3": f"s3://{BUCKET}/rows/problems.jsonl", "field_instruction": "question", "field_output": "answer"}
    return CampaignSpec.model_validate({
        "enabled": True,
        "model_repo": BASE,
        "datasets": [source],
        "samples_per_training": 40,
        "final_test_size": 0.2,
        "dedupe": {"rows": "exact"},
        "evaluate": {"max_seq_length": 128},
        "gate": {"min_gain": 0.01},
        "budget": {"cost_per_task": 2.0, "max_cost": 100.0, "max_failures": 1},
        **more,
    })  # fmt: skip


def until(what: Callable[[], Any], why: Any) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := what()):
        assert time.monotonic() < deadline, why() if callable(why) else why
        time.sleep(0.05)
    return found


def reached(client: Client, number: int, step: str, name: str = NAME) -> CycleView:
    """Wait for the outcome of a step."""

    def done() -> CycleView | None:
        found = client.campaigns.get(name)
        assert found.status == "active", f"{found.reason}\n{said(client, name)}"
        cycle = next((each for each in found.cycle_list if each.number == number), None)
        over = cycle is not None and any(each.name == step and each.status == "done" for each in cycle.steps)
        return cycle if over else None

    found: CycleView = until(done, lambda: said(client, name))
    return found


def held(client: Client, name: str = NAME) -> str:
    """Wait until a campaign waits for a person, and return why."""
    until(lambda: client.campaigns.get(name).status == "held", lambda: said(client, name))
    return client.campaigns.get(name).reason or ""


def outcome(cycle: CycleView, step: str) -> Mapping[str, Any]:
    (found,) = [each for each in cycle.steps if each.name == step]
    assert found.outcome is not None
    return found.outcome


def said(client: Client, name: str = NAME) -> str:
    return "\n".join(line.text for line in client.campaigns.log(name).lines)


def version(client: Client, cycle: int, name: str = NAME) -> ModelVersionView:
    return max((each for each in client.models.list(name=name).items if each.cycle == cycle), key=lambda e: e.version)


def test_what_was_trained_on_shuffled_answers_is_refused_and_what_is_better_promoted(
    outside: Outside, s3_server: Gateway
) -> None:
    api, hub = outside.api, outside.hub
    with outside.fleet.client() as client:
        outside.upload("miner/good", outside.train(client, "good", BASE, 24))
        outside.upload("miner/broken", outside.folder / "good-adapter", **{"adapter_model.safetensors": b"torn"})
        outside.offer(gone=0.1, broken=0.2, good=None)
        api.statuses = ["pending", "awaiting_model_prep"]
        api.faults += [Fault(CREATE, 429, body={"detail": "Slow down"}), Fault(CREATE, 500, bills=True)]
        client.campaigns.apply({NAME: spec(s3_server)})
        assert "Slow down" in held(client)
        client.campaigns.retry(NAME)
        until(lambda: api.tasks, lambda: said(client))
        assert "returned 500" in held(client)
        client.campaigns.retry(NAME)
        order = outcome(reached(client, 0, "submit"), "submit")
        assert order["ticket"] == api.tasks[0]["id"]
        place = f"/v1/tasks/{order['ticket']}"
        api.faults += [
            Fault(place, 500, method="GET"),
            Fault(place, 429, method="GET", headers={"Retry-After": "0"}),
            Fault(place, how="drop", method="GET"),
            Fault(place, 404, method="GET", body={"detail": "Task not found."}),
        ]
        until(lambda: not api.faults, lambda: said(client))
        api.statuses = ["success"]
        _check_promoted(outside, client, order)

        # The Hub's repository is private, and Gradients could not begin with it.
        assert "reads public repositories only" in held(client)
        assert len(api.tasks) == 1, "nothing is ordered that could not begin"
        hub.repos[f"tester/{NAME}-0"].private = False
        api.statuses = ["training"]
        client.campaigns.retry(NAME)
        reached(client, 1, "submit")
        assert api.tasks[1]["said"]["model_repo"] == f"tester/{NAME}-0"
        outside.upload("miner/shuffled", outside.train(client, "shuffled", f"tester/{NAME}-0", 16, shuffled=True))
        outside.offer(shuffled=0.0001)
        api.statuses = ["success"]
        reached(client, 1, "wait")
        api.statuses = ["training"]
        outside.upload("miner/better", outside.train(client, "better", f"tester/{NAME}-0", 16, whole=True))
        refused = outcome(reached(client, 1, "record"), "gate")
        assert not refused["passed"]
        assert refused["against"]["base"]["passed"], "it has learnt to answer, and not which answer"
        assert not refused["against"]["promoted"]["passed"]
        assert refused["against"]["promoted"]["high"] < 0, "it is worse, and surely so"
        assert version(client, 1).stage == "archived"
        assert f"tester/{NAME}-1" not in hub.repos

        reached(client, 2, "submit")
        assert api.tasks[2]["said"]["model_repo"] == f"tester/{NAME}-0", "the refused one is nobody's base"
        outside.offer(better=9.0)
        api.statuses = ["success"]
        recorded = reached(client, 2, "record")
        passed = outcome(recorded, "gate")
        assert passed["against"]["promoted"]["low"] > 0
        assert outcome(recorded, "merge")["taken"] == "miner/better"
        assert "h-better (miner/better) is a full model and is used without a merge" in said(client)
        weights = hub.repos[f"tester/{NAME}-2"].branches["main"]["model.safetensors"]
        assert weights == hub.repos["miner/better"].branches["main"]["model.safetensors"]
        assert version(client, 2).location == {"url": f"hf://tester/{NAME}-2"}
        assert version(client, 2).stage == "promoted"
        assert hub.repos[f"tester/{NAME}-2"].private
        client.campaigns.stop(NAME)
        assert len(api.tasks) == 3
        assert client.campaigns.get(NAME).spent == 6.0
    told = (outside.fleet.folder / "server.log").read_text()
    assert not [secret for secret in (KEY, SECRET_KEY, TOKEN, "X-Amz-Signature") if secret in told]


def _check_promoted(outside: Outside, client: Client, order: Mapping[str, Any]) -> None:
    cycle = reached(client, 0, "record")
    (task,) = outside.api.tasks
    rows = outcome(cycle, "data")
    assert rows["chunk"]["rows"] <= 40
    assert rows["test"]["rows"] > 30
    log = said(client)
    assert f"was already placed: {task['id']}" in log
    for name in ("gone", "broken"):
        assert f"a candidate cannot be evaluated and is skipped: h-{name} (miner/{name}): " in log
    assert "The weights of the adapter" in log
    chosen = outcome(cycle, "select")
    assert chosen["candidate"]["ref"] == "miner/good"
    made = version(client, 0)
    assert made.stage == "promoted"
    assert made.location["url"] == f"hf://tester/{NAME}-0"
    assert made.evaluation["gate"]["against"]["base"]["low"] > 1
    repo = outside.hub.repos[f"tester/{NAME}-0"]
    assert repo.private
    files = repo.branches["main"]
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md"} <= files.keys()
    card = files["README.md"].decode()
    digests = (rows["chunk"]["digest"], rows["test"]["digest"], outcome(cycle, "merge")["digest"])
    for text in (f"base_model: {BASE}", "miner/good", order["ticket"], f"{chosen['loss']:.4g}", *digests):
        assert text in card
    assert made.evaluation["gate"]["reason"] in card


def test_models_that_nobody_can_load_wait_for_a_person_and_none_is_ordered_anew(
    outside: Outside, s3_server: Gateway
) -> None:
    api, name = outside.api, "other"
    before = len(api.tasks)
    with outside.fleet.client() as client:
        outside.upload("miner/fresh", outside.train(client, "fresh", BASE, 12))
        outside.upload("miner/torn", outside.folder / "fresh-adapter", **{"adapter_config.json": b"{"})
        outside.offer(lost=0.5, torn=0.2)
        api.statuses = ["success"]
        to = outside.folder / "published"
        client.campaigns.apply({name: spec(s3_server, publish={"to": "hf://acme/{cycle}-other", "private": False})})
        reason = held(client, name)
        assert "None of the 2 candidates can be evaluated" in reason
        assert "miner/lost" in reason
        assert len(api.tasks) == before + 1
        outside.upload("miner/lost", outside.folder / "fresh-adapter")
        api.statuses = ["training"]
        client.campaigns.retry(name)
        chosen = outcome(reached(client, 0, "record", name), "select")
        assert chosen["candidate"]["ref"] == "miner/lost"
        assert not outside.hub.repos["acme/0-other"].private
        reached(client, 1, "submit", name)
        assert len(api.tasks) == before + 2, "the next chunk, and no other one"

        # What was merged is published elsewhere, too: a folder, and a bucket.
        for place in (str(to), f"s3://{BUCKET}/published/other"):
            client.campaigns.apply({name: spec(s3_server, publish={"to": place})})
            client.campaigns.remerge(name, cycle=0)
            until(lambda place=place: version(client, 0, name).location["url"] == place, lambda: said(client, name))
        listed = s3_server.client.list_objects_v2(Bucket=BUCKET, Prefix="published/other/")["Contents"]
        sent = {entry["Key"].removeprefix("published/other/") for entry in listed}
        assert {path.name for path in to.iterdir()} == sent
        assert {"model.safetensors", "README.md"} <= sent
        client.campaigns.stop(name)
        until(lambda: not stored(s3_server, client.campaigns.get(name).id), lambda: said(client, name))


def stored(s3_server: Gateway, campaign_id: str) -> list[str]:
    listed = s3_server.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{PREFIX}/{campaign_id}/")
    return [entry["Key"] for entry in listed.get("Contents", ())]
