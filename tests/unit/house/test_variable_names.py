"""Every setting has a name of ours, `TUNEFLEET_…`; names of compatible systems work, too; a difference is reported."""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import AliasChoices, SecretStr

from scripts import write_reference
from tunefleet import settings
from tunefleet.errors import MachineError
from tunefleet.settings import loader

THEIRS = ("HF_", "HUGGING", "AWS_", "WANDB_", "MLFLOW_", "CUDA_", "GOOGLE_", "AZURE_", "XDG_", "OTEL_")
THEIR_KEYS = {"GRADIENTS_API_KEY", "RUNPOD_API_KEY"}
"""What the services call their keys."""
VALUES: dict[str, str] = {
    "log_level": "DEBUG", "redis_url": "redis://h:1/0", "otlp_endpoint": "http://h:1", "worker_selection": "first_fit",
    "dispatch_mode": "adaptive", "agent_id": "agent_0123456789", "wandb_mode": "offline", "gang_ports": "1",
    "lambda_other": "0.1", "min_hours": "0", "min_days": "0",
    "runpod_url": "http://h", "gradients_url": "http://h", "gradients_account": "a", "public_base_url": "http://h",
}  # fmt: skip


def _fields() -> list[tuple[str, str, tuple[str, ...]]]:
    found = []
    for name in write_reference.PROCESSES:
        cls = getattr(settings, name)
        for field in inspect.get_annotations(cls):
            alias = cls.model_fields[field].validation_alias if field in cls.model_fields else None
            if isinstance(alias, AliasChoices):
                found.append((name, field, tuple(map(str, alias.choices))))
    return found


def _value(field: Any, name: str) -> str:
    if name in VALUES:
        return VALUES[name]
    kind = str(field.annotation)
    if "bool" in kind:
        return str(not field.default).lower()
    return "0.5" if "float" in kind else "7" if "int" in kind else "some"


@pytest.mark.parametrize(("cls", "field", "names"), _fields(), ids=[f"{c}-{f}" for c, f, _ in _fields()])
def test_a_setting_has_a_name_of_ours_and_each_of_its_names_works(
    cls: str, field: str, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert names[0].startswith(("TUNEFLEET_", *THEIRS)) or names[0] in THEIR_KEYS
    monkeypatch.chdir(tmp_path)
    if len(names) == 1:
        return
    kind = getattr(settings, cls)
    value, found = _value(kind.model_fields[field], field), []
    for name in names:
        with monkeypatch.context() as context:
            context.setenv(name, value)
            read = getattr(settings.load(kind), field)
            found.append(read.get_secret_value() if isinstance(read, SecretStr) else read)
    assert len(set(map(str, found))) == 1
    assert found[0] != kind.model_fields[field].default or field in {"dispatch_mode", "min_hours", "min_days"}


def test_our_name_applies_where_both_are_set_and_a_difference_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loader, "_REPORTED", set())
    monkeypatch.setenv("TUNEFLEET_RESULTS_DIR", "/ours")
    monkeypatch.setenv("RESULTS_DIR", "/ours")
    with caplog.at_level(logging.WARNING):
        settings.load(settings.WorkerSettings)
        assert caplog.messages == []
        monkeypatch.setenv("RESULTS_DIR", "/theirs")
        for _ in range(2):
            assert settings.load(settings.WorkerSettings).results_dir == Path("/ours")
    assert caplog.messages == [
        "TUNEFLEET_RESULTS_DIR and RESULTS_DIR are set to different values: TUNEFLEET_RESULTS_DIR applies."
    ]


def test_the_environment_comes_before_dotenv_under_either_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("TUNEFLEET_WORKER_TAGS=file\n")
    monkeypatch.setenv("WORKER_TAGS", "environment")
    assert settings.load(settings.WorkerSettings).tags == ("environment",)


@pytest.mark.parametrize("address", ["TUNEFLEET_SERVER_URL", "ORCHESTRATOR_BASE_URL"])
@pytest.mark.parametrize("key", ["TUNEFLEET_WORKER_KEY", "ORCHESTRATOR_TOKEN"])
def test_a_dotenv_redirects_no_key_under_any_name(
    address: str, key: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text(f"{address}=http://elsewhere\n")
    monkeypatch.setenv(key, "a-key")
    with pytest.raises(MachineError, match=f"{address} is set in .env, but {key}"):
        settings.load(settings.WorkerSettings)


def test_an_invalid_value_is_reported_under_the_name_that_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOG_MAX_BYTES", "many")
    with pytest.raises(MachineError, match="LOG_MAX_BYTES must be an integer, not 'many'") as failed:
        settings.load(settings.ServerSettings)
    assert "TUNEFLEET_LOG_MAX_BYTES" not in str(failed.value)


@pytest.mark.parametrize("name", ["TUNEFLEET_SHARED_TOKEN", "TUNEFLEET_AGENT_KEY", "TUNEFLEET_REDIS_URL", "REDIS_URL"])
def test_a_child_inherits_no_key_under_any_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "secret")
    assert name not in settings.inherited_environment()
