"""Which projects and hosts a machine lets its secrets go to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunefleet.errors import InputError, SpecError
from tunefleet.runtime.secrets import Secrets

KEY = "${secret:WANDB}"
HOSTS = "WANDB: {hosts: [api.wandb.ai, '*.inner.org', 'one.org:8443']}"


def secrets(tmp_path: Path, limits: str, **values: str) -> Secrets:
    (tmp_path / "limits.yaml").write_text(limits)
    return Secrets({"WANDB": "the value", "ROOT": "also one", **values}, None, tmp_path / "limits.yaml")


def test_a_secret_for_a_project_is_announced_for_it_alone(tmp_path: Path) -> None:
    known = secrets(tmp_path, "WANDB: {projects: [vision, speech]}\nGONE: {}\n")
    assert known.reported_names() == ("ROOT", "WANDB@speech", "WANDB@vision")
    assert known.names() == ("ROOT", "WANDB")
    assert known.unknown() == ("GONE",)
    assert known.environment["TUNEFLEET_SECRETS_LIMITS"] == str(tmp_path / "limits.yaml")


@pytest.mark.parametrize(("project", "allowed"), [("vision", True), ("other", False), (None, False)])
def test_a_task_of_another_project_may_not_name_it(tmp_path: Path, project: str | None, allowed: bool) -> None:
    known = secrets(tmp_path, "WANDB: {projects: [vision]}")
    task = {"command": ["x"], "env": {"KEY": f"a {KEY}"}}
    if allowed:
        known.check(task, "command", project)
    else:
        with pytest.raises(
            InputError, match=r"spec\.env\.KEY: this machine's secret WANDB is not allowed in tasks"
        ) as caught:
            known.check(task, "command", project)
        assert "WANDB.projects" in str(caught.value)
    known.check({"env": {"KEY": "${secret:ROOT}", "TEXT": "$${secret:WANDB}"}}, "command", project)


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("api", {"api": {"url": "URL", "headers": {"X-Key": KEY}}}),
    ("api", {"api": {"url": "URL", "json": {"deep": [KEY]}}}),
    ("api", {"api": {"url": f"URL?key={KEY}"}}),
    ("echo", {"output": {"destination": {"type": "http", "url": "URL", "headers": {"X-Key": KEY}}}}),
    ("lora_sft", {"checkpoint": {"load": {"type": "http", "url": "URL", "headers": {"X-Key": KEY}}}}),
    ("inference", {"model": {"adapters": [{"url": "URL", "headers": {"X-Key": KEY}}]}}),
    ("lora_sft", {"data": {"jsonl": {"download_url": "URL", "download_headers": {"X-Key": KEY}}}}),
    ("data", {"sources": [{"jsonl": {"url": "URL", "headers": {"X-Key": KEY}}}]}),
    ("evaluate", {"evaluations": [{"data": {"jsonl": {"url": "URL", "headers": {"X-Key": KEY}}}}]}),
    ("rag", {"qdrant": {"url": "URL", "api_key": KEY}}),
]


def at(spec: Any, url: str) -> Any:
    if isinstance(spec, str):
        return spec.replace("URL", url)
    if isinstance(spec, dict):
        return {key: at(each, url) for key, each in spec.items()}
    return [at(each, url) for each in spec] if isinstance(spec, list) else spec


@pytest.mark.parametrize(("kind", "spec"), REQUESTS)
def test_a_secret_for_hosts_goes_to_them_alone(tmp_path: Path, kind: str, spec: dict[str, Any]) -> None:
    known = secrets(tmp_path, HOSTS)
    for url in (
        "https://api.wandb.ai/x", "http://API.wandb.ai.:9/x", "https://a.b.inner.org/", "https://one.org:8443/"
    ):  # fmt: skip
        known.check(at(spec, url), kind, None)
    for url in (
        "https://api.wandb.ai.evil.org/x", "https://evil.org/api.wandb.ai", "https://api.wandb.ai@evil.org/x",
        "https://xinner.org/", "https://inner.org/", "https://one.org/", "https://one.org:bad/", "https:///x",
    ):  # fmt: skip
        with pytest.raises(InputError, match="WANDB"):
            known.check(at(spec, url), kind, None)


def test_an_address_that_a_secret_stands_in_counts_with_its_value(tmp_path: Path) -> None:
    known = secrets(tmp_path, HOSTS, HOST="evil.org")
    spec = {"api": {"url": "https://${secret:HOST}/x", "headers": {"X": KEY}}}
    with pytest.raises(InputError, match=r"WANDB may not be sent to evil\.org"):
        known.check(spec, "api", None)


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("command", {"command": ["x", KEY]}),
        ("python", {"env": {"KEY": KEY, "url": "https://api.wandb.ai"}}),
        ("command", {"env": {"KEY": KEY}, "api": {"url": "https://api.wandb.ai"}}),
        ("echo", {"data": {"type": "list", "items": [KEY], "url": "https://api.wandb.ai"}}),
        ("echo", {"data": {"items": [{"url": KEY}], "url": "https://api.wandb.ai"}}),
        ("inference", {"model": {"vllm": {"hf_token": KEY}}}),
        ("echo", {"api": {"url": "https://api.wandb.ai", "headers": {"X": KEY}}}),
        ("api", {"api": {"headers": {"X": KEY}}}),
        ("api", {"api": {"url": "https://api.wandb.ai"}, "metadata": KEY}),
        ("lora_sft", {"checkpoint": {"load": {"path": KEY}}}),
    ],
)
def test_a_secret_for_hosts_is_handed_to_nothing_else(tmp_path: Path, kind: str, spec: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"this machine's secret WANDB is limited to certain hosts"):
        secrets(tmp_path, HOSTS).check(spec, kind, None)


def test_of_several_addresses_in_a_block_each_must_be_allowed(tmp_path: Path) -> None:
    block = {"url": "https://api.wandb.ai/x", "base_url": "https://evil.org", "headers": {"X": KEY}}
    with pytest.raises(InputError, match=r"evil\.org"):
        secrets(tmp_path, HOSTS).check({"checkpoint": {"load": block}}, "lora_sft", None)


def test_what_is_sent_by_hand_is_held_to_the_hosts(tmp_path: Path) -> None:
    known = secrets(tmp_path, HOSTS)
    known.check_sent(["https://api.wandb.ai", {"X": KEY}], "https://api.wandb.ai")
    known.check_sent({"X": "${secret:ROOT}"}, "https://evil.org")
    with pytest.raises(InputError, match=r"WANDB may not be sent to evil\.org"):
        known.check_sent({"X": KEY}, "https://evil.org")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a mapping of secrets"),
        ("[WANDB]", "not a mapping of secrets"),
        ("WANDB: {host: [a.org]}", "WANDB.host"),
        ("A: {}\nWANDB: {hosts: ['https://a.org']}", "line 2"),
        ("WANDB: {hosts: ['a.*.org']}", "not a host"),
        ("WANDB: {projects: vision, hosts: 3}", "WANDB.hosts"),
        ("WANDB: [", "line"),
        ("WANDB: {}\nWANDB: {}", "line 2"),
    ],
)
def test_a_file_that_is_wrong_never_means_no_limits(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        secrets(tmp_path, text)
    assert "limits.yaml" in str(caught.value)


def test_a_file_that_is_not_there_never_means_no_limits(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="TUNEFLEET_SECRETS_LIMITS"):
        Secrets({}, None, tmp_path / "none.yaml")
    (tmp_path / "long.yaml").write_text("#" * 300_000)
    with pytest.raises(InputError, match="more than"):
        Secrets({}, None, tmp_path / "long.yaml")
