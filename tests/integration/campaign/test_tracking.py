"""A campaign on a real server with real trackers: each is told of the cycle once, whoever is killed meanwhile."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import billed_package
from tests.fakes.billing import Billing, billing
from tests.integration.campaign.test_kills import Fleet, outcome, serving
from tests.integration.tracking.kept import mlflow_runs, trackio_runs, wandb_runs
from tunefleet.client import Client
from tunefleet.schemas.campaign import CampaignDetail, TrackingView
from tunefleet.spec.documents.campaign_document import CampaignSpec

pytestmark = [pytest.mark.proof, pytest.mark.timeout(400)]

PATIENCE_S = 240.0
DOCUMENT_CONFIG = {
    "merged_model_repo", "model_repo", "previously_finetuned_model_repo", "original_model_repo", "timestamp", "task_id",
    "winning_miner", "training_number",
}  # fmt: skip
TOKEN = "mlflow-token-that-nobody-may-see"


@pytest.fixture(scope="module")
def bills() -> Iterator[Billing]:
    with billing(answer_s=0.01) as state:
        yield state


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int], bills: Billing) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("campaign-tracking")
    billed_package.install(folder / "layer")
    more = {
        "WANDB_MODE": "offline",
        "WANDB_ENTITY": "team",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/runs.db",
        "MLFLOW_TRACKING_TOKEN": TOKEN,
        "TRACKIO_DIR": str(folder / "trackio"),
    }
    with serving(folder, free_port(), bills, **more) as made:
        yield made


def spec(**more: Any) -> CampaignSpec:
    return CampaignSpec.model_validate({
        "enabled": True,
        "provider": "billed",
        "model_repo": "org/nothing",
        "datasets": [
            {"path": "builtin:gsm8k", "max_rows": 60, "field_instruction": "question", "field_output": "answer"}
        ],
        "samples_per_training": 20,
        "final_test_size": 0.1,
        "dedupe": {"rows": "exact"},
        "run_intervals": {"min_hours": 1000, "max_hours": 1000},
        "budget": {"cost_per_task": 2.0},
        **more,
    })  # fmt: skip


def until(client: Client, name: str, over: Callable[[CampaignDetail], Any]) -> CampaignDetail:
    deadline = time.monotonic() + PATIENCE_S
    while not over(found := client.campaigns.get(name)):
        assert time.monotonic() < deadline, found
        assert found.status == "active", found.reason
        time.sleep(0.05)
    return found


def tracked(found: CampaignDetail) -> tuple[TrackingView, ...]:
    return found.cycle_list[-1].tracking if found.cycle_list else ()


def test_every_tracker_has_the_cycle_with_the_documents_keys(fleet: Fleet) -> None:
    with fleet.client() as client:
        client.campaigns.apply({"all": spec(tracking=["wandb", "mlflow", "trackio"], wandb_project="charts")})
        found = until(client, "all", lambda found: [each.told_at for each in tracked(found) if each.told_at][2:])
        lines = [line.text for line in client.campaigns.log("all", limit=200).lines]
        everything = found.model_dump_json() + "".join(lines)
    assert "tracked by wandb and mlflow and trackio: set in the campaign" in lines
    assert [each.tracker for each in tracked(found)] == ["mlflow", "trackio", "wandb"]
    assert TOKEN not in everything

    (kept,) = wandb_runs(fleet.folder / "data" / "tracking")
    config = {key: value for key, value in kept.config.items() if not key.startswith("_")}
    (row,) = [{key: value for key, value in row.items() if not key.startswith("_")} for row in kept.rows]
    ticket = outcome(found.cycle_list[-1], "submit")["ticket"]
    assert (kept.run.entity, kept.run.project, kept.run.run_id) == ("team", "charts", f"{found.id}-0")
    assert kept.run.display_name == f"builtin:gsm8k-llama-2m_{ticket}"
    assert {key: config[key] for key in DOCUMENT_CONFIG - {"timestamp"}} == {
        "merged_model_repo": "builtin:gsm8k-llama-2m",
        "model_repo": "builtin:gsm8k-llama-2m",
        "previously_finetuned_model_repo": "org/nothing",
        "original_model_repo": "org/nothing",
        "task_id": ticket,
        "winning_miner": f"{ticket}-good",
        "training_number": 0,
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", config["timestamp"])
    said = {"test_loss": 9.0, "synth_loss": 7.0, "weighted_loss": 8.0, "score": 0.5}
    assert {key: row[key] for key in said} == said
    ours = {"held_out_loss", "base_loss", "gain_over_base", "promoted", "cost", "provider_seconds"}
    assert set(row) >= ours
    assert (row["promoted"], row["cost"], row["provider_seconds"]) == (1, 2.0, 10.0)
    assert row["held_out_loss"] == pytest.approx(row["base_loss"] - row["gain_over_base"])
    assert TOKEN.encode() not in kept.raw

    (run,) = mlflow_runs(fleet.environment["MLFLOW_TRACKING_URI"])
    assert run["params"] == {key: str(value) for key, value in config.items()}
    assert {key: rows for key, rows in run["metrics"].items()} == {
        key: [[pytest.approx(value), 0]] for key, value in row.items()
    }
    (run,) = trackio_runs(Path(fleet.environment["TRACKIO_DIR"]))
    assert {key: run["config"][key] for key in config} == config
    assert [{key: told[key] for key in row} for told in run["rows"]] == [row]


def test_a_server_that_is_killed_while_it_tells_tells_once(fleet: Fleet) -> None:
    runs = fleet.folder / "data" / "tracking" / "wandb" / "wandb"
    with fleet.client() as client:
        client.campaigns.apply({"killed": spec(wandb_project="killed")})
        id_ = client.campaigns.get("killed").id
        deadline = time.monotonic() + PATIENCE_S
        while not list(runs.glob(f"offline-run-*-{id_}-0")):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        # The tracker has begun to write the run; nobody has stored that it has it.
        fleet.kill_server()
        killed_at = time.time()
        fleet.start_server()
        found = until(client, "killed", lambda found: [each for each in tracked(found) if each.told_at])
    (told,) = tracked(found)
    assert told.told_at is not None
    assert told.told_at.timestamp() > killed_at, "it was told before the kill"
    (kept,) = [kept for kept in wandb_runs(fleet.folder / "data" / "tracking") if kept.run.project == "killed"]
    assert kept.exited
    assert len(kept.rows) == 1
    assert [each.status for each in found.cycle_list] == ["completed"]
