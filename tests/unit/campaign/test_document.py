"""The scheduler's own `config.yaml` and `.env`, unchanged, in the folder where the command is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.campaign.played import Points, Shop, engine
from tests.unit.campaign.service.desk import made
from tests.unit.orchestrator.lab import Lab
from tests.unit.spec.test_campaign_file import DOCUMENT
from tunefleet.campaign.service import service
from tunefleet.campaign.steps.sleep import interval_of
from tunefleet.cli.main import run
from tunefleet.settings import CampaignSettings, PublishSettings, load
from tunefleet.spec.documents.campaign_document import RunIntervalsSpec
from tunefleet.spec.documents.campaign_file import parse_campaigns

VARIABLES = """\
GRADIENTS_API_KEY=your_api_key_here
GRADIENTS_API_URL=https://api.gradients.io
WANDB_ENTITY=your_wandb_entity_here
WANDB_API_KEY=your_wandb_api_key_here
CHECK_INTERVAL=600  # Optional, defaults to 600 seconds
HF_USERNAME=your_huggingface_username
HF_TOKEN=your_huggingface_token
S3_COMPATIBLE_ENDPOINT=your_s3_endpoint_url
S3_COMPATIBLE_ACCESS_KEY=your_s3_access_key
S3_COMPATIBLE_SECRET_KEY=your_s3_secret_key
S3_BUCKET_NAME=your_bucket_name

# Model loading configuration (optional)
USE_CPU_FOR_MODELS=false  # Set to true to use CPU instead of GPU

# RunPod configuration (optional)
USE_RUNPOD_FOR_MERGE=false  # Set to true to use RunPod for model merging
RUNPOD_API_KEY=your_runpod_api_key  # Required if USE_RUNPOD_FOR_MERGE=true
RUNPOD_ENDPOINT_ID=your_endpoint_id  # Required if USE_RUNPOD_FOR_MERGE=true
RUNPOD_TIMEOUT=10000  # Optional, defaults to 10000 seconds (~3 hour)
RUNPOD_MAX_RETRIES=3  # Optional, defaults to 3 retry attempts

# Delay settings (all optional)
MIN_HOURS_BETWEEN_RUNS=6
MAX_HOURS_BETWEEN_RUNS=8
MIN_DAYS_BETWEEN_RUNS=2
MAX_DAYS_BETWEEN_RUNS=3
"""
HOUR, DAY = 3600.0, 86_400.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (line.partition("=")[0] for line in VARIABLES.splitlines()):
        monkeypatch.delenv(name or "#", raising=False)
    (tmp_path / ".env").write_text(VARIABLES)
    (tmp_path / "config.yaml").write_text(DOCUMENT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_every_variable_of_the_document_is_read() -> None:
    found = load(CampaignSettings)
    secrets = {
        "gradients_key": "your_api_key_here", "hf_token": "your_huggingface_token",
        "s3_access_key": "your_s3_access_key", "s3_secret_key": "your_s3_secret_key",
        "runpod_key": "your_runpod_api_key",
    }  # fmt: skip
    assert {name: getattr(found, name).get_secret_value() for name in secrets} == secrets
    plain: dict[str, Any] = {
        "gradients_url": "https://api.gradients.io", "check_interval_s": 600,
        "hf_username": "your_huggingface_username",
        "s3_endpoint": "your_s3_endpoint_url", "s3_bucket": "your_bucket_name", "use_cpu": False, "use_runpod": False,
        "runpod_endpoint": "your_endpoint_id", "runpod_timeout_s": 10_000, "runpod_max_retries": 3,
        "min_hours": 6, "max_hours": 8, "min_days": 2, "max_days": 3,
    }  # fmt: skip
    assert {name: getattr(found, name) for name in plain} == plain
    token = load(PublishSettings).hf_token
    assert token is not None
    assert token.get_secret_value() == "your_huggingface_token"


def test_the_documents_files_are_run_from_the_folder_they_lie_in(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Trackers have tests of their own, with their libraries.
    (folder / "config.yaml").write_text(DOCUMENT.replace('  wandb_project: "wandb-project-name"\n', ""))
    assert run(["campaign", "dry-run", "--json"]) == 0, capsys.readouterr().err
    said = capsys.readouterr()
    (found,) = json.loads(said.out)["campaigns"]
    assert (found["name"], found["next"]) == ("name-of-the-task", "starts cycle 0")
    assert found["facts"]["provider"] == "gradients (GRADIENTS_API_KEY is set)"
    assert "your_" not in said.out.replace("your_huggingface_username", ""), "no secret is shown"


@pytest.mark.usefixtures("folder")
def test_the_variables_count_for_a_campaign_without_an_interval() -> None:
    settings = load(CampaignSettings)
    (own,) = parse_campaigns(DOCUMENT).values()
    assert interval_of(own, settings) == RunIntervalsSpec()
    without = own.model_copy(update={"run_intervals": None})
    wanted = RunIntervalsSpec(min_days=2, max_days=3, min_hours=6, max_hours=8)
    assert interval_of(without, settings) == wanted


async def test_the_interval_is_counted_from_the_end_of_the_run_and_drawn_once(lab: Lab) -> None:
    id_ = await made(lab, run_intervals={"min_days": 2, "max_days": 3, "min_hours": 6, "max_hours": 8})
    shop = Shop(states={f"ticket-{id_}/0": "running"})
    await engine(lab, shop, Points()).advance(id_)
    lab.clock.advance(50 * HOUR)
    shop.states.clear()
    await engine(lab, shop, Points()).advance(id_)
    ended, found = lab.clock.wall, await service.get(lab.core, lab.admin, id_)
    assert found.next_at is not None
    slept = found.next_at.timestamp() - ended
    assert 2 * DAY + 6 * HOUR <= slept <= 3 * DAY + 8 * HOUR
    lab.clock.advance(slept - 60)
    assert not await engine(lab, shop, Points()).advance(id_), "a new engine draws nothing anew"
    assert shop.orders == [f"{id_}/0"]
    lab.clock.advance(61)
    await engine(lab, shop, Points()).advance(id_)
    assert shop.orders == [f"{id_}/0", f"{id_}/1"]
