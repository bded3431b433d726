"""The base model of a campaign is verified by a real task before a provider that bills is asked for anything."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import billed_package
from tests.fakes.billing import Billing, billing
from tests.integration.campaign.test_kills import Fleet, serving
from tests.libraries import required
from tunefleet.client import Client
from tunefleet.schemas.campaign import CampaignDetail
from tunefleet.spec.documents.campaign_document import CampaignSpec
from tunefleet.workloads import assets

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(400)]

PATIENCE_S = 200.0
BUILTIN = "builtin:gsm8k-llama-2m"


@pytest.fixture(scope="module")
def bills() -> Iterator[Billing]:
    with billing(answer_s=0.0) as state:
        yield state


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int], bills: Billing) -> Iterator[Fleet]:
    required("transformers")
    folder = tmp_path_factory.mktemp("base-model")
    billed_package.install(folder / "layer", verifies=False)
    more = {"TUNEFLEET_HOME": str(folder / "home"), "USE_CPU_FOR_MODELS": "true"}
    with serving(folder, free_port(), bills, **more) as made:
        yield made


def spec(**more: Any) -> CampaignSpec:
    dataset = {"path": "builtin:gsm8k", "max_rows": 40, "field_instruction": "question", "field_output": "answer"}
    return CampaignSpec.model_validate({
        "enabled": True, "provider": "billed", "model_repo": "./model", "datasets": [dataset],
        "samples_per_training": 20, "final_test_size": 0.1, "dedupe": {"rows": "exact"},
        "run_intervals": {"min_hours": 0, "max_hours": 0}, "budget": {"cost_per_task": 2.0}, **more,
    })  # fmt: skip


def until(look: Callable[[], CampaignDetail], over: Callable[[CampaignDetail], bool]) -> CampaignDetail:
    deadline = time.monotonic() + PATIENCE_S
    while not over(found := look()):
        assert time.monotonic() < deadline, [
            (step.name, step.error) for each in found.cycle_list for step in each.steps
        ]
        time.sleep(0.05)
    return found


def steps(found: CampaignDetail, number: int) -> dict[str, Any]:
    """Return what the steps of a cycle have done, by their names."""
    cycles = [cycle for cycle in found.cycle_list if cycle.number == number]
    return {step.name.value: step.outcome for each in cycles for step in each.steps if step.outcome is not None}


def verifications(client: Client) -> list[Any]:
    return [each for each in client.tasks.list(limit=200).items if each.kind == "verify"]


def test_a_model_that_cannot_be_trained_costs_nothing_and_is_mended_in_the_file(
    fleet: Fleet, bills: Billing, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(assets.locate(BUILTIN, "model"), model)
    shutil.copytree(model, tmp_path / "tokenizer", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "tokenizer" / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    config = json.loads((model / "config.json").read_bytes())
    (model / "config.json").write_text(json.dumps({**config, "eos_token_id": 5000}))
    with fleet.client() as client:
        client.campaigns.send({"based": spec()}, tmp_path, start=True)

        def said() -> CampaignDetail:
            return client.campaigns.get("based")

        held = until(said, lambda found: found.status == "held")
        assert held.reason is not None
        needs = "Action required: correct the campaign's file, then `tunefleet campaign start based`."
        assert held.reason.startswith(f"{needs} ./model cannot be trained; nothing was ordered.")
        assert "config.json has eos_token_id: 5000, but the model has embeddings for 2048 tokens" in held.reason
        assert (held.spent, bills.tasks) == (0.0, [])
        assert held.cycles == 1, "it is held at once, not after several failures"

        (model / "config.json").write_text(json.dumps(config))
        client.campaigns.send({"based": spec(tokenizer_id="./tokenizer")}, tmp_path, start=True)
        done = until(said, lambda found: "data" in steps(found, 2))
        client.campaigns.stop("based")
        assert len(bills.tasks) >= 1
        first, second = steps(done, 1), steps(done, 2)
        assert first["data"]["model"]["task_id"] == second["data"]["model"]["task_id"], "it is verified once"
        task = client.tasks.get(first["data"]["model"]["task_id"])
        assert task.spec["enforce_cpu"] is True, "USE_CPU_FOR_MODELS reaches the task"
        assert first["data"]["model"]["vocabulary"]["tokenizer_of"] == "./tokenizer"
        made = client.artifacts.get(first["data"]["model"]["artifact_id"])
        assert first["submit"]["base"]["digest"] == made.digest, "the model with its tokenizer is what is ordered"
        fetched = client.artifacts.fetch(made.id, tmp_path / "made")
        assert (fetched / "chat_template.jinja").read_text().startswith("{% for m in messages %}{{ m.content")
        assert (fetched / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
        base = client.tasks.get(first["evaluate"]["base"]["task_id"])
        assert base.inputs["model.source.identifier"] == made.digest, "it is measured with its new tokenizer, too"
        assert len(verifications(client)) == 2
        assert first["data"]["model"]["parameters"] > 2_000_000
