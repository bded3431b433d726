"""Federations on the command line and from Python: made, looked at, gone back with, paused and ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.api.federated import arrays, workers
from tests.integration.api.support import Running, until
from tests.integration.client.conftest import Cli
from tunefleet.cli import options
from tunefleet.client import AsyncClient, Client
from tunefleet.errors import ConflictError, NotFoundError
from tunefleet.schemas.federated import FederationDetail, VersionDetail, VersionView
from tunefleet.spec.options.federation_options import FederationSpec


def two_versions(running: Running, made: dict[str, Any], folder: Path) -> None:
    with workers(running, made, folder, "ada", "bob") as (ada, bob):
        for version in (1, 2):
            ada.upload(arrays(version), numExamples=30, lossBefore=2.5, loss=2.0)
            bob.upload(arrays(version + 10), numExamples=10)
            ada.await_version(version)
        ada.send(b"no archive")


def test_the_story_of_a_federation_on_the_command_line(running: Running, cli: Cli, tmp_path: Path) -> None:
    assert cli("federation").out == "No federations yet. Create one with `tunefleet federation create`.\n"
    file = tmp_path / "federation.yaml"
    file.write_text("name: gsm8k\nstrategy: {name: fedavg_exact}\nmin_workers: 2\n")
    made = cli("federation", "create", file, "--deadline", "2m", "--set", "strategy.rank=2", "--json").json
    assert (made["strategy"], made["spec"]["deadline_s"], made["spec"]["strategy"]["rank"]) == (
        "fedavg_exact",
        120.0,
        2,
    )
    host = running.url.removeprefix("http://")
    url = f"http://:{made['token']}@{host}"
    shown = cli("federation", "token", made["number"])
    assert shown.out == f"{url}\n", "a script takes it as it is"
    assert f'FederatedCallback("{running.url}", job_id="{made["id"]}"' in shown.err
    assert cli("federation", "token", made["number"], "--json").json["url"] == url
    assert cli("federation", "versions", made["id"]).out == "No versions yet. The first round has not been published.\n"

    two_versions(running, made, tmp_path)
    listed = cli("federation", "ls").out
    assert "gsm8k" in listed
    assert "fedavg_exact" in listed
    detail = cli("federation", "show", made["id"]).out
    for word in ("gsm8k", "running", "2 workers", "ada", "bob", "published", "collecting"):
        assert word in detail, word
    assert FederationDetail.model_validate(cli("federation", "show", made["id"], "--json").json).version == 2
    versions = cli("federation", "versions", made["id"]).out
    assert "ada, bob" in versions
    one = cli("federation", "versions", made["id"], 1).out
    for word in ("0.750", "0.250", "2.5000 → 2", "Download: tunefleet artifacts get art-"):
        assert word in one, word
    stored = VersionDetail.model_validate(cli("federation", "versions", made["id"], 1, "--json").json)
    assert [each.worker for each in stored.contributions] == ["ada", "bob"]
    fetched = cli("artifacts", "get", stored.artifact_id, tmp_path / "fetched")
    assert fetched.code == 0, fetched.err
    assert (tmp_path / "fetched" / "adapter_config.json").exists()

    assert cli("federation", "rollback", made["id"], 1).code != 0, "nobody can be asked here"
    back = cli("federation", "rollback", made["id"], 1, "--yes").out
    assert back == "Published version 1 again as version 3; workers fetch it at their next poll.\n"
    assert "version 1 again" in cli("federation", "versions", made["id"]).out
    assert cli("federation", "pause", made["id"]).out == "gsm8k is paused.\n"
    assert cli("federation", "start", made["id"]).out == "gsm8k is running.\n"
    assert cli("federation", "rm", made["id"], "--yes").code != 0
    assert cli("federation", "cancel", made["id"], "--yes").out == "gsm8k is cancelled.\n"
    assert cli("federation", "rm", made["id"], "--yes").out == f"Removed {made['id']}.\n"
    assert cli("federation", "show", made["id"]).code == 4


def test_what_is_wrong_is_said_before_anything_is_made(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "federation.yaml"
    file.write_text("strategy:\n  name: krum\nmin_workers: 2\nsync_evry_steps: 5\n")
    wrong = cli("federation", "create", file)
    assert wrong.code != 0
    assert "4 │ sync_evry_steps: 5" in wrong.err
    assert "did you mean sync_every_steps?" in wrong.err
    assert "needs 5 updates" in cli("federation", "create", "--strategy", "krum").err
    assert "none.yaml not found." in cli("federation", "create", tmp_path / "none.yaml").err
    assert "cannot be read" in cli("federation", "create", tmp_path).err
    assert cli("federation", "create", "--deadline", "soon").code != 0
    assert cli("federation", "ls", "--json").json == []


def test_options_make_a_federation_and_its_url_is_printed(running: Running, cli: Cli) -> None:
    told = cli(
        "federation", "create", "--name", "few", "--participants", "ada, bob", "--min-workers", 2, "--rounds", 3,
        "--base-model", "builtin:tiny", "--sync-every", 20, "--max-workers", 2, "--hold",
    )  # fmt: skip
    assert told.code == 0, told.err
    name, url, *_ = told.out.splitlines()
    id_ = name.split(" as ")[1].split(",")[0]
    assert url == f"http://:{cli('federation', 'token', id_, '--json').json['token']}@{running.url[7:]}"
    assert f"tunefleet federation start {id_}" in told.out
    assert "whsec_" not in told.out, "who wants it takes --json, or gives one"
    old = cli("federation", "token", id_, "--json").json["token"]
    assert cli("federation", "token", id_, "--replace").code != 0, "nobody can be asked here"
    assert "Add --replace" in cli("federation", "token", id_, "--keep-old", "1h").err
    replaced = cli("federation", "token", id_, "--replace", "--keep-old", "1h", "--yes", "--json").json
    assert replaced["token"] != old
    assert replaced["old_until"] is not None
    shown = cli("federation", "token", id_)
    assert replaced["token"] in shown.out
    assert "The old token is valid until 20" in shown.err
    spec = cli("federation", "show", id_, "--json").json["spec"]
    assert (spec["participants"], spec["sync_every_steps"], spec["rounds"]) == (["ada", "bob"], 20, 3)
    assert "all of ada, bob" in cli("federation", "show", id_).out
    assert [word for word, _ in options.complete_federation("fed-")] == [id_]
    cli("federation", "cancel", id_, "--yes")
    cli("federation", "rm", id_, "--yes")


def test_a_federation_from_python(running: Running, client: Client, tmp_path: Path) -> None:
    secret = "whsec_" + "A" * 32
    made = client.federations.create(FederationSpec(name="sdk", callback_secret=secret))
    assert made.callback_secret == secret
    assert client.federations.newest(made.id) is None
    two_versions(running, json.loads(made.model_dump_json()), tmp_path)
    newest = client.federations.newest(made.id, after=1, wait_s=30)
    assert isinstance(newest, VersionView)
    assert newest.version == 2
    assert [each.version for each in client.federations.versions(str(made.number)).items] == [2, 1]
    states = [each.state for each in client.federations.updates(made.id, worker="ada").items]
    assert states == ["rejected", "aggregated", "aggregated"]
    until(lambda: [each.status for each in client.federations.rounds(made.id).items][1:] == ["published", "published"])
    assert client.federations.token(made.id).token == made.token
    assert client.federations.replace_token(made.id).token == client.federations.token(made.id).token != made.token
    hook = {"callback_url": "https://lab.example.org/x"}
    assert client.federations.change_member(made.id, "ada", hook).callback_url == "https://lab.example.org/…"
    assert client.federations.change_member(made.id, "ada", {}).callback_url == "https://lab.example.org/…"
    with pytest.raises(ConflictError):
        client.federations.remove(made.id)
    assert client.federations.cancel(made.id).status == "cancelled"
    client.federations.remove(made.id)
    with pytest.raises(NotFoundError):
        client.federations.get(made.id)


async def test_a_federation_from_a_coroutine(running: Running) -> None:
    async with AsyncClient(running.url, running.admin_key) as client:
        made = await client.federations.create(FederationSpec(name="async"), start=False)
        assert (await client.federations.get(made.id)).status == "queued"
        assert [each.id for each in (await client.federations.list(status="queued")).items] == [made.id]
        await client.federations.cancel(made.id)
        await client.federations.remove(made.id)


def test_whose_training_a_federation_is_is_shown(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "document.yaml"
    file.write_text(
        "apiVersion: tunefleet/v1\nmetadata: {name: whose}\nspec:\n  taskType: lora_sft\n"
        "  model: {source: {identifier: builtin:gsm8k-llama-2m}}\n  data: {prompts: [one, two]}\n"
        "  federation: {workers: 2}\n"
    )
    tasks = cli("submit", file, "--json").json["tasks"]
    (whole,) = (task["id"] for task in tasks if "#" not in task["name"])
    (listed,) = cli("federation", "ls", "--json").json
    assert listed["task_id"] == whole
    assert whole in cli("federation", "show", listed["id"]).out
    assert whole[:8] in cli("federation", "ls").out
