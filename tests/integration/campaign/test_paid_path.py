"""A campaign at Gradients on a real server, with a real S3 service: one task is billed, whoever is killed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson
import pytest

from tests.fakes import billed_package
from tests.fakes.gradients_api import ACCOUNT, KEY, Fault, Gradients, gradients
from tests.fakes.hub import serving
from tests.integration.campaign.test_kills import Fleet
from tests.integration.s3.gateway import ACCESS_KEY, BUCKET, SECRET_KEY, Gateway
from tunefleet.campaign.object_store import PREFIX
from tunefleet.client import Client
from tunefleet.schemas.campaign import CampaignDetail
from tunefleet.spec.documents.campaign_document import CampaignSpec

pytestmark = [pytest.mark.proof, pytest.mark.timeout(240)]

HUB_TOKEN = "hub-token-0123456789"
ROWS = 60
PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def api() -> Iterator[Gradients]:
    with gradients(answer_s=0.5, statuses=["training"]) as state:
        yield state


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int], api: Gradients, s3_server: Gateway
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("paid")
    billed_package.install(folder / "layer")
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(folder / "layer"), os.environ.get("PYTHONPATH")))),
        "TUNEFLEET_HOME": str(folder / "home"),
        "GRADIENTS_API_KEY": KEY,
        "GRADIENTS_API_URL": api.url,
        "GRADIENTS_ACCOUNT_ID": ACCOUNT,
        "TUNEFLEET_GRADIENTS_SETTLE_S": "0.5",
        "CHECK_INTERVAL": "0.3",
        "S3_COMPATIBLE_ENDPOINT": s3_server.endpoint,
        "S3_COMPATIBLE_ACCESS_KEY": ACCESS_KEY,
        "S3_COMPATIBLE_SECRET_KEY": SECRET_KEY,
        "S3_BUCKET_NAME": BUCKET,
        "ENABLE_ELASTIC_SCALING": "false",
        "TUNEFLEET_WARM_START": "false",
        "TUNEFLEET_JOB_SLOTS": "2",
    }
    with serving(HUB_TOKEN) as hub:
        there = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_USERNAME": "tester", "HF_TOKEN": HUB_TOKEN}
        made = Fleet(folder, free_port(), environment | there)
        try:
            made.start_server()
            made.start_worker()
            yield made
        finally:
            made.end()


def spec(**more: Any) -> CampaignSpec:
    dataset = {"path": "builtin:gsm8k", "max_rows": ROWS, "field_instruction": "question", "field_output": "answer"}
    return CampaignSpec.model_validate({
        "enabled": True,
        "model_repo": "org/model",
        "datasets": [dataset],
        "samples_per_training": 20,
        "final_test_size": 0.1,
        "dedupe": {"rows": "exact"},
        "budget": {"cost_per_task": 2.0, "max_cost": 100.0},
        **more,
    })  # fmt: skip


def until(what: Callable[[], Any], why: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := what()):
        assert time.monotonic() < deadline, why()
        time.sleep(0.01)
    return found


def outcomes(found: CampaignDetail) -> Mapping[str, Mapping[str, Any]]:
    steps = found.cycle_list[-1].steps if found.cycle_list else ()
    return {step.name.value: step.outcome for step in steps if step.outcome is not None}


def stored(s3_server: Gateway, campaign_id: str) -> list[str]:
    listed = s3_server.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{PREFIX}/{campaign_id}/")
    return [entry["Key"] for entry in listed.get("Contents", ())]


def lines_of(client: Client, artifact: str, folder: Path) -> list[Any]:
    return [orjson.loads(line) for line in client.artifacts.fetch(artifact, folder).read_bytes().splitlines()]


@pytest.mark.story
def test_one_task_is_billed_and_the_rows_are_gone_at_its_end(
    fleet: Fleet, api: Gradients, s3_server: Gateway, tmp_path: Path
) -> None:
    with fleet.client() as client:
        client.campaigns.apply({"paid": spec()})

        def said() -> CampaignDetail:
            return client.campaigns.get("paid")

        until(lambda: api.tasks, said)
        # Billed, and the answer is on its way: nobody has stored it.
        fleet.kill_server()
        looked = api.count("GET", "/v1/tasks/account/")
        assert api.count("GET", f"/v1/tasks/{api.tasks[0]['id']}") == 0
        fleet.start_server()
        until(lambda: api.count("GET", "/v1/tasks/account/") > looked, said)
        fleet.kill_server()
        fleet.start_server()
        done = until(lambda: found if "submit" in outcomes(found := said()) else None, said)
        (task,) = api.tasks
        assert outcomes(done)["submit"]["ticket"] == task["id"]
        assert done.spent == 2.0

        link = task["said"]["ds_repo"]
        (key,) = stored(s3_server, done.id)
        assert urlsplit(link).path == f"/{BUCKET}/{key}"
        assert key.startswith(f"{PREFIX}/{done.id}/0/")
        sent = httpx.get(link, trust_env=False).raise_for_status().json()
        assert (
            httpx.get(link.replace("X-Amz-Expires=604800", "X-Amz-Expires=604801"), trust_env=False).status_code >= 400
        )
        assert httpx.get(link.partition("?")[0], trust_env=False).status_code == 403
        data = outcomes(done)["data"]
        assert len(sent) == data["chunk"]["rows"]
        assert all(set(row) == {"instruction", "input", "output"} for row in sent)
        chunk = lines_of(client, data["chunk"]["artifact_id"], tmp_path / "chunk")
        assert [row["instruction"] for row in sent] == [row["instruction"] for row in chunk]
        held_out = {row["instruction"] for row in lines_of(client, data["test"]["artifact_id"], tmp_path / "test")}
        assert held_out
        assert held_out.isdisjoint(row["instruction"] for row in sent), "held-out rows are sent to nobody"

        api.hotkeys = [{"hotkey": "h", "repo": "org/adapter", "quality_score": 1.0, "test_loss": 1.0}]
        api.statuses = ["success"]
        over = until(lambda: found if "wait" in outcomes(found := said()) else None, said)
        client.campaigns.stop("paid")
        assert [each["ref"] for each in outcomes(over)["wait"]["candidates"]] == ["org/adapter"]
        assert outcomes(over)["wait"]["cost_s"] == 5400.0
        assert stored(s3_server, over.id) == []
        assert len(api.tasks) == 1
        assert not list((fleet.folder / "home" / "uploads").iterdir()), "nothing of an upload stays on the disk"
        log = [line.text for line in client.campaigns.log("paid").lines]
        told = json.dumps([client.campaigns.get("paid").model_dump(mode="json"), log])
    assert any("the provider is gradients: GRADIENTS_API_KEY is set" in line for line in log)
    assert any(f"was already placed: {task['id']}" in line for line in log)
    for text in (told, (fleet.folder / "server.log").read_text()):
        for secret in (KEY, SECRET_KEY, "X-Amz-Signature"):
            assert secret not in text


def test_files_of_an_order_that_was_stopped_are_removed(fleet: Fleet, api: Gradients, s3_server: Gateway) -> None:
    api.statuses = ["training"]
    before = len(api.tasks)
    with fleet.client() as client:
        # Its rows come from the store, too.
        lines = [json.dumps({"q": f"What is {each} and {each}?", "a": str(2 * each)}) for each in range(40)]
        s3_server.client.put_object(Bucket=BUCKET, Key="rows/sums.jsonl", Body="\n".join(lines).encode())
        source = {"s3": f"s3://{BUCKET}/rows/sums.jsonl", "field_instruction": "q", "field_output": "a"}
        client.campaigns.apply({"fixed": spec(task_type="InstructTextWithFixedDatasets", datasets=[source])})

        def said() -> CampaignDetail:
            return client.campaigns.get("fixed")

        found = until(lambda: found if "submit" in outcomes(found := said()) else None, said)
        task = api.tasks[before]
        assert task["path"] == "/v1/tasks/create_with_fixed_datasets"
        parts = {role: task["said"][role] for role in ("training_data", "test_data", "synthetic_data")}
        rows = {role: httpx.get(link, trust_env=False).raise_for_status().json() for role, link in parts.items()}
        count = outcomes(found)["data"]["chunk"]["rows"]
        assert {role: len(each) for role, each in rows.items()} == {
            "training_data": count - 2, "test_data": 1, "synthetic_data": 1
        }  # fmt: skip
        questions = [row["instruction"] for each in rows.values() for row in each]
        assert len(set(questions)) == count, "no row is in two files"
        assert set(questions) <= {json.loads(line)["q"] for line in lines}
        assert len(stored(s3_server, found.id)) == 3
        client.campaigns.stop("fixed")
        until(lambda: task["id"] in api.deleted, said)
        until(lambda: not stored(s3_server, found.id), said)
    assert len(api.tasks) == before + 1


def test_files_of_an_order_that_is_refused_for_good_are_removed(
    fleet: Fleet, api: Gradients, s3_server: Gateway
) -> None:
    before, place = len(api.tasks), "/v1/tasks/create"
    body = {"detail": [{"loc": ["body", "model_repo"], "msg": "No such model"}]}
    api.faults.append(Fault(place, 422, body=body))
    with fleet.client() as client:
        client.campaigns.apply({"refused": spec(budget={"max_failures": 1})})

        def said() -> CampaignDetail:
            return client.campaigns.get("refused")

        until(lambda: said().status == "held", said)
        assert "No such model" in (said().reason or "")
        assert outcomes(said())["upload"]["objects"], "they were there"
        assert stored(s3_server, said().id) == []
        client.campaigns.stop("refused")
    assert len(api.tasks) == before


def test_what_cannot_go_on_is_said_before_anything_is_paid_for(fleet: Fleet, api: Gradients) -> None:
    before = len(api.tasks)
    with fleet.client() as client:
        wrong = spec(publish={"to": "none"}, hours_to_complete=160)
        client.campaigns.apply({"wrong": wrong})
        until(lambda: client.campaigns.get("wrong").status == "held", lambda: client.campaigns.get("wrong"))
        found = client.campaigns.get("wrong")
        for text in (
            "publish.to is none",
            "hf://ORG/NAME-{cycle}",
            "hours_to_complete is 160",
            "Set it to 144 or less",
        ):
            assert text in (found.reason or "")
        assert {step.name.value for step in found.cycle_list[0].steps} == {"data"}
        client.campaigns.stop("wrong")
    assert len(api.tasks) == before
