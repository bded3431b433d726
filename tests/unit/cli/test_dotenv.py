"""What a file `.env` of the working directory may say: it may have come with what somebody unpacked there."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from tunefleet import settings
from tunefleet.cli.main import Root, app, root
from tunefleet.client import trust
from tunefleet.errors import MachineError
from tunefleet.integrations.publishing import hub
from tunefleet.settings import (
    AgentSettings,
    CampaignSettings,
    ProcessSettings,
    PublishSettings,
    ServerSettings,
    TracingSettings,
    TrackingSettings,
    WorkerSettings,
    load,
    load_agent,
    load_worker,
)

HOSTILE = (
    "TUNEFLEET_URL=http://stranger.example\nTUNEFLEET_CA_FILE=/strange.pem\nTUNEFLEET_HOME=/strange\n"
    "HF_ENDPOINT=http://stranger.example\nTUNEFLEET_S3_ENDPOINT=http://stranger.example\n"
)


@pytest.mark.parametrize("command", [entry.name for entry in Root.table])
def test_a_command_takes_nothing_from_a_dotenv_unless_it_runs_what_one_sets_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name in ("TUNEFLEET_URL", "TUNEFLEET_CA_FILE", "TUNEFLEET_HOME", "HF_ENDPOINT", "TUNEFLEET_S3_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text(HOSTILE)
    main_command = typer.main.get_command(app)
    with typer.Context(main_command) as context:
        context.invoked_subcommand = command
        root(context)
        assert trust.ca_file() is None
        reads = command in {
            "up", "server", "worker", "agent", "campaign", "db", "backup", "restore", "verify-store", "doctor",
            "uninstall",
        }  # fmt: skip
        assert (load(PublishSettings).hf_endpoint is not None) == reads
        assert (load(ProcessSettings).home == Path("/strange")) == reads
    assert load(ProcessSettings).home == Path("/strange"), "it holds for that command alone"


def test_a_dotenv_gives_no_variable_of_the_environment_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mine")
    (tmp_path / ".env").write_text("GRADIENTS_API_KEY=${AWS_SECRET_ACCESS_KEY}\nGRADIENTS_API_URL=http://stranger\n")
    with pytest.raises(MachineError, match=r"GRADIENTS_API_KEY in \.env refers to another variable"):
        load(CampaignSettings)
    assert settings.variables_of(["GRADIENTS_"])["GRADIENTS_API_KEY"] == "${AWS_SECRET_ACCESS_KEY}"


def test_what_a_command_starts_reads_no_dotenv_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TUNEFLEET_HOME", raising=False)
    (tmp_path / ".env").write_text("TUNEFLEET_HOME=/strange\nMAX_CONCURRENT_JOBS=7\n")
    assert load_agent().max_jobs == 7
    with settings.without_dotenv():
        assert load_agent().max_jobs != 7
        assert settings.inherited_environment()["TUNEFLEET_DOTENV"] == "false"
        assert not settings.variables_of(["MAX_CONCURRENT_JOBS"])
    assert "TUNEFLEET_DOTENV" not in settings.inherited_environment()
    assert settings.variables_of(["MAX_CONCURRENT_JOBS"])


def test_a_dotenv_does_not_say_where_a_secret_of_the_environment_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for cls in (AgentSettings, CampaignSettings, PublishSettings, ServerSettings, TrackingSettings, WorkerSettings):
        for address, secrets in {**TracingSettings.addresses, **cls.addresses}.items():
            if not issubclass(cls, TracingSettings) and address not in cls.addresses:
                continue
            for secret in secrets:
                with monkeypatch.context() as change:
                    for name in (address, *secrets):
                        change.delenv(name, raising=False)
                    (tmp_path / ".env").write_text(f"{address}=http://stranger.example\n{secret}=own\n")
                    load(cls)
                    change.setenv(secret, "mine")
                    with pytest.raises(MachineError, match=f"{address} is set in .env, but {secret}"):
                        load(cls)
                    change.setenv(address, "http://mine.example")
                    load(cls)


def test_a_dotenv_chooses_no_server_for_the_secrets_of_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks could name them all."""
    monkeypatch.chdir(tmp_path)
    for name in ("REDIS_URL", "ORCHESTRATOR_BASE_URL", "TUNEFLEET_SECRET_WANDB", "TUNEFLEET_SECRETS_DIR"):
        monkeypatch.delenv(name, raising=False)
    for address in ("REDIS_URL=redis://stranger", "ORCHESTRATOR_BASE_URL=http://stranger"):
        (tmp_path / ".env").write_text(address + "\n")
        load(WorkerSettings)
        with monkeypatch.context() as change:
            change.setenv("TUNEFLEET_SECRET_WANDB", "mine")
            with pytest.raises(MachineError, match=r"is set in \.env, but TUNEFLEET_SECRET_WANDB"):
                load(WorkerSettings)


def test_the_token_of_a_login_is_sent_to_no_hub_of_a_dotenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HF_ENDPOINT", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert hub._token(load(PublishSettings)) is None
    (tmp_path / ".env").write_text("HF_ENDPOINT=http://stranger\n")
    assert hub._token(load(PublishSettings)) is False
    (tmp_path / ".env").write_text("HF_ENDPOINT=http://mirror\nHF_TOKEN=of-the-mirror\n")
    assert hub._token(load(PublishSettings)) == "of-the-mirror"


@pytest.mark.parametrize("name", ProcessSettings.programs)
def test_a_dotenv_names_nothing_that_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(name, raising=False)
    (tmp_path / ".env").write_text(f"{name}=./evil\n")
    with pytest.raises(MachineError, match=f"{name} in .env names a program to run"):
        load(ProcessSettings)
    monkeypatch.setenv(name, str(tmp_path / "mine"))
    load(ProcessSettings)


def test_a_dotenv_allows_no_code_through_a_home_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TUNEFLEET_HOME", "TUNEFLEET_ALLOW_CODE", "TUNEFLEET_WORKER_KEY", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "worker.env").write_text(
        "TUNEFLEET_ALLOW_CODE=true\nTUNEFLEET_WORKER_KEY=k\nORCHESTRATOR_BASE_URL=http://127.0.0.1:8000\n"
    )
    (tmp_path / "home" / "agent.env").write_text("MODEL_ARCHIVE_PIGZ_BIN=./evil\nMAX_CONCURRENT_JOBS=7\n")
    (tmp_path / ".env").write_text("TUNEFLEET_HOME=home\nTUNEFLEET_ALLOW_CODE=true\n")
    assert not load_worker().allow_code
    assert load_worker().key is None
    assert load_agent().max_jobs != 7


@pytest.mark.parametrize(
    ("prefixes", "secret", "added"),
    [
        (("WANDB_",), "WANDB_API_KEY", "WANDB_CONFIG_DIR"),
        (("WANDB_",), "WANDB_API_KEY", "WANDB_BASE_URL"),
        (("TRACKIO_", "HF_TOKEN"), "HF_TOKEN", "TRACKIO_SPACE_ID"),
        (("MLFLOW_",), "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_URI"),
    ],
)
def test_a_dotenv_adds_nothing_to_a_trackers_key_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefixes: tuple[str, ...], secret: str, added: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(added, raising=False)
    monkeypatch.setenv(secret, "mine")
    (tmp_path / ".env").write_text(f"{added}=./cfg\n")
    with pytest.raises(MachineError, match=f"{added} \\(x\\) is set in .env, but {secret}"):
        settings.variables_for("x", prefixes)
    monkeypatch.delenv(secret)
    (tmp_path / ".env").write_text(f"{added}=./cfg\n{secret}=own\n")
    assert settings.variables_for("x", prefixes)[added] == "./cfg"
