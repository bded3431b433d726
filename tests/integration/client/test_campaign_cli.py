"""Campaigns and models on the command line and from Python."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from tests.integration.api.support import Running
from tests.integration.api.test_campaigns import Engine
from tests.integration.client.conftest import Cli
from tunefleet.campaign.service.cycle_state import BudgetError, NewVersion
from tunefleet.campaign.service.step_progress import Activity
from tunefleet.cli import options
from tunefleet.cli.campaigns.run import _follow
from tunefleet.client import AsyncClient, Client
from tunefleet.lifecycle.cycle import Stage, StepName
from tunefleet.schemas.campaign import CampaignLine, CampaignView
from tunefleet.spec.documents.campaign_file import parse_campaigns

CONFIG = """story:
  enabled: true
  provider: local
  model_repo: org/model
  datasets: [{name: org/rows, field_instruction: question, field_output: answer}]
  budget: {max_cost: 10, cost_per_task: 1}
resting:
  enabled: false
  model_repo: org/model
  datasets: [{name: org/rows, field_instruction: question, field_output: answer}]
"""


@pytest.fixture
def engine(running: Running) -> Engine:
    return Engine(running)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "campaigns.yaml"
    file.write_text(CONFIG)
    return file


def test_the_story_of_a_campaign_on_the_command_line(cli: Cli, engine: Engine, config: Path) -> None:
    assert cli("campaign").out.startswith("No campaigns yet.")
    assert cli("models").out == "No models yet. Campaigns create them.\n"
    started = cli("campaign", "start", "--config", config)
    assert "story (created) is active." in started.out
    assert "resting (created) is paused. Its configuration has enabled: false." in started.out
    id_ = cli("campaign", "show", "story", "--json").json["id"]

    state = engine.to(id_, StepName.WAIT)
    assert state is not None
    asyncio.run(engine.repository.log(state, "info", "Task t-1 is placed."))
    asyncio.run(engine.repository.later(state, 4e9, "t-1 trains"))
    listed = cli("campaign", "list").out
    assert "wait: t-1 trains; next check in" in listed
    shown = cli("campaign", "show", "story").out
    for word in ("story", id_, "active", "wait: t-1 trains", "org/model", "0 of 10", "running"):
        assert word in shown, word
    log = cli("campaign", "logs", "story").out
    placed, waiting = log.splitlines()[-2:]
    assert placed.endswith(" - story - INFO [cycle 0, wait] Task t-1 is placed.")
    assert " - story - INFO [cycle 0, wait] waiting: t-1 trains; next check in " in waiting

    assert cli("campaign", "pause", "story").out == "story is paused. admin paused it.\n"
    assert cli("campaign", "resume", "story").out == "story is active.\n"
    assert cli("campaign", "retry", "story").code != 0, "nothing has failed"
    assert cli("campaign", "stop", "story").code != 0, "nobody can be asked here"
    assert cli("campaign", "stop", "story", "--yes").out == "story is stopped. admin stopped it.\n"
    assert cli("campaign", "start", "story", "--config", config).out.startswith("story (unchanged) is active.")


def test_models_and_lineage(cli: Cli, engine: Engine, config: Path) -> None:
    cli("campaign", "start", "story", "--config", config)
    id_ = cli("campaign", "show", "story", "--json").json["id"]
    engine.cycle(id_)
    engine.cycle(id_)
    models = cli("models", "ls", "story").out
    assert "promoted" in models
    assert "archived" in models
    assert "hf://org/x" in cli("models", "show", "story").out
    lineage = cli("campaign", "lineage", "story", "--limit", 1).out
    assert "version 2 promoted" in lineage
    assert "of merge" in lineage
    assert cli("campaign", "rollback", "story", "--yes").out.startswith("Version 1 of story is promoted again. ")
    assert cli("models", "promote", "story", 2, "--yes").out.startswith("Version 2 of story is promoted. ")
    assert cli("models", "rollback", "admin/story", "--yes").out.startswith(
        "Version 1 of story is promoted again. The campaign's publish target"
    )
    assert cli("campaign", "remerge", "story").out.startswith("Merging the model of cycle ")
    assert cli("campaign", "remerge", "story", "--cycle", 99).code != 0
    refused = cli("models", "export", "story")
    assert "Version 1 of story is not on this server." in refused.err
    assert "It is at hf://org/x." in refused.err


def test_a_held_campaign_says_why_and_what_to_do(cli: Cli, engine: Engine, config: Path) -> None:
    cli("campaign", "start", "--config", config, "story")
    id_ = cli("campaign", "show", "story", "--json").json["id"]
    asyncio.run(engine.repository.over_budget(engine.take(id_), BudgetError("10 are spent.", hint="Raise max_cost.")))
    needs = "Action required: correct the campaign's file, then `tunefleet campaign start story`."
    assert f"{needs} 10 are spent. Raise max_cost." in cli("campaign", "list").out
    assert needs in " ".join(cli("campaign", "show", "story").out.split())
    assert needs in cli("campaign", "logs", "story").out
    assert needs in " ".join(cli("campaign", "resume", "story").err.split())
    assert cli("campaign", "retry", "story").out == "story is active.\n"


class Looks(threading.Event):
    """Asks to end after some looks."""

    left = 3

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        self.left -= 1
        return self.left < 0


def test_a_daemon_that_starts_again_lets_nothing_go_on_that_rests(
    cli: Cli, client: Client, engine: Engine, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = {"story": parse_campaigns(CONFIG)["story"]}
    _follow(client, specs, config.parent, Looks(), as_json=False)
    id_ = client.campaigns.get("story").id
    asyncio.run(engine.repository.over_budget(engine.take(id_), BudgetError("10 are spent.", hint="Raise max_cost.")))
    needs = "Action required: correct the campaign's file, then `tunefleet campaign start story`. 10 are spent."
    stopped, paused = (f"Continue with `tunefleet campaign {verb} story`." for verb in ("start", "resume"))
    for status, way in (("held", needs), ("stopped", stopped), ("paused", paused)):
        if status == "stopped":
            client.campaigns.stop("story")
        if status == "paused":
            client.campaigns.start("story")
            client.campaigns.pause("story")
        capsys.readouterr()
        looks = Looks()
        _follow(client, specs, config.parent, looks, as_json=False)
        assert looks.left < 0, "it waits for somebody who lets it go on"
        assert client.campaigns.get("story").status.value == status
        told = " ".join(capsys.readouterr().err.split())
        assert told.count(f"story is {status}.") == 1
        assert way in told


def test_every_fault_of_the_file_is_named_with_its_line(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("story:\n  enabled: maybe\n  model_repo: org/model\n  datasets: []\n")
    refused = cli("campaign", "start", "--config", file)
    assert refused.code != 0
    assert "has 2 errors" in refused.err
    assert "2 │   enabled: maybe" in refused.err
    assert "4 │   datasets: []" in refused.err
    missing = cli("campaign", "start", "--config", tmp_path / "none.yaml")
    assert f"File {tmp_path / 'none.yaml'} not found." in missing.err


def test_a_known_campaign_starts_without_a_file(
    cli: Cli, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cli("campaign", "start", "story", "--config", config)
    cli("campaign", "stop", "story", "--yes")
    assert cli("campaign", "start", "story").out == "story is active.\n"
    assert "File config.yaml not found." in cli("campaign", "start").err


def test_a_model_on_the_server_is_exported_even_after_its_task_is_gone(
    cli: Cli, client: Client, engine: Engine, config: Path, tmp_path: Path
) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"weights")
    pushed = client.data.push(weights, name="merged")
    cli("campaign", "start", "--config", config, "story")
    id_ = cli("campaign", "show", "story", "--json").json["id"]
    state = engine.to(id_, StepName.RECORD)
    assert state is not None
    new = NewVersion(Stage.PROMOTED, "model", {"artifact_id": pushed.id})
    version = asyncio.run(engine.repository.register(state, new))
    client.artifacts.remove(pushed.id)
    fetched = cli("models", "export", "story", version.version, "--out", tmp_path / "out", "--json").json
    assert Path(fetched["path"], "model.safetensors").read_bytes() == b"weights"
    assert fetched["version"] == version.version


def test_the_sdk_follows_log_and_events(client: Client, engine: Engine, config: Path) -> None:
    specs = parse_campaigns(CONFIG)
    (made,) = client.campaigns.apply({"followed": specs["story"]})
    state = engine.take(made.id)
    asyncio.run(engine.repository.log(state, "info", "first"))
    lines = client.campaigns.follow_log("followed")
    assert next(lines).text == "first"
    threading.Timer(0.2, lambda: asyncio.run(engine.repository.log(state, "info", "second"))).start()
    assert next(lines).text == "second"
    events = client.campaigns.follow("followed", after=0)
    assert [next(events).kind for _ in range(2)] == ["campaign.created", "campaign.cycle"]


def test_what_a_step_does_is_followed_as_it_goes_on(client: Client, engine: Engine, config: Path) -> None:
    (made,) = client.campaigns.apply({"watched": parse_campaigns(CONFIG)["story"]})
    state = engine.take(made.id)
    asyncio.run(engine.repository.log(state, "info", "first"))
    news = client.campaigns.watch("watched")
    first = next(news)
    assert isinstance(first, CampaignLine)
    assert first.text == "first"
    start = next(news)
    assert isinstance(start, CampaignView)
    assert start.cycle is not None
    assert start.cycle.activity is None
    for done in (1, 2):
        asyncio.run(engine.repository.report(state, Activity("shuffling", done, 2, "rows")))
        now = next(news)
        assert isinstance(now, CampaignView)
        assert now.cycle is not None
        assert now.cycle.activity is not None
        assert (now.cycle.activity.what, now.cycle.activity.done) == ("shuffling", done)
    asyncio.run(engine.repository.log(state, "info", "second"))
    assert isinstance(second := next(news), CampaignLine)
    assert second.text == "second"


async def test_the_asynchronous_client_has_the_same_nouns(running: Running) -> None:
    async with AsyncClient(running.url, running.admin_key) as client:
        assert (await client.campaigns.list()).next_cursor is None
        assert (await client.models.list(stage="candidate")).items == ()


def test_names_are_completed(cli: Cli, config: Path) -> None:
    cli("campaign", "start", "--config", config)
    assert ("resting", "paused") in options.complete_campaign("rest")
