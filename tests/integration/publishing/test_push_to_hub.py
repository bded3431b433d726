"""A push to the Hub: what is published, what is refused, what happens after a kill, and where no secret is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.fakes.hub import Hub, Repo
from tests.integration.publishing.conftest import TOKEN, Push, Pushed, inputs, spec_of
from tests.libraries import required
from tunefleet.lifecycle.task import TaskReason
from tunefleet.testing.job_runner import Runner

required("huggingface_hub")
pytestmark = [pytest.mark.proof, pytest.mark.timeout(200)]

TO = "hf://acme/tuned"


def test_an_adapter_is_published_with_a_card_and_its_source_stays_as_it_is(push: Push, hub: Hub, adapter: Path) -> None:
    before = {path.name: path.read_bytes() for path in adapter.iterdir()}
    made = push(TO, private=True, revision="v1", message="First round")
    result, repo = made.result, hub.repos["acme/tuned"]
    published = repo.branches["v1"]
    assert result["url"] == f"{hub.url}/acme/tuned/tree/v1"
    assert (repo.private, repo.messages) == (True, ["First round"])
    assert result["files"] == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    assert result["size_bytes"] == sum(len(published[name]) for name in result["files"])
    assert published["adapter_model.safetensors"] == before["adapter_model.safetensors"]
    card = published["README.md"].decode()
    assert all(text in card for text in ("org/base", "task-1", result["digest"], "LoRA, rank 8, alpha 16", "0.25"))
    assert "/models/base" not in card, "a path on the worker"
    assert {path.name: path.read_bytes() for path in adapter.iterdir()} == before
    events = [record for record in made.records("event") if record["name"].startswith("push.")]
    assert [each["name"] for each in events] == ["push.checking", "push.uploading", "push.published"]
    assert events[-1]["data"]["url"] == result["url"]
    assert made.records("progress")[-1]["phase"] == "uploading"
    assert TOKEN.encode() not in made.written()


def test_one_file_is_published_under_its_name(push: Push, hub: Hub, tmp_path: Path) -> None:
    file = tmp_path / "model-q8_0.gguf"
    file.write_bytes(b"GGUF" * 100)
    assert push(TO, source=file).result["files"] == ["README.md", "model-q8_0.gguf"]
    assert "A GGUF file" in hub.repos["acme/tuned"].branches["main"]["README.md"].decode()


@pytest.mark.parametrize(
    ("environment", "repo", "options", "says"),
    [
        ({}, None, {}, "No token with write access"),
        ({"HF_TOKEN": "a-reader"}, None, {}, "rejects access"),
        ({"HF_TOKEN": "hf_bad\tvalue"}, None, {}, "characters that no token has"),
        (None, Repo({"main": {"config.json": b"{}"}}), {}, "already contains config.json"),
        (None, Repo(), {"private": True}, "exists and is public"),
        ({"TUNEFLEET_SECRET_T": "a-reader"}, None, {"hf_token": "${secret:T}"}, "rejects access"),
    ],
)
def test_what_the_user_must_change_is_not_tried_again(
    push: Push,
    hub: Hub,
    environment: Mapping[str, str] | None,
    repo: Repo | None,
    options: dict[str, object],
    says: str,
) -> None:
    if repo is not None:
        hub.repos["acme/tuned"] = repo
    made = push(TO, environment, **options)
    assert (made.end.outcome, made.end.reason) == ("failed", TaskReason.BAD_INPUT), made.end.error
    assert says in str(made.end.error)
    for value in (environment or {"HF_TOKEN": TOKEN}).values():
        assert value.encode() not in made.written()
    assert repo is None or repo.messages == []


def test_a_token_that_the_task_names_is_used_and_written_nowhere(push: Push, hub: Hub) -> None:
    made = push(TO, {"HF_TOKEN": "a-reader", "TUNEFLEET_SECRET_HUB": TOKEN}, hf_token="${secret:HUB}")
    assert made.result["commit"]
    assert "adapter_config.json" in hub.repos["acme/tuned"].branches["main"]
    assert TOKEN.encode() not in made.written()


def test_files_are_overwritten_on_request_and_nothing_else(push: Push, hub: Hub) -> None:
    old = {"model.safetensors": b"old", "notes.txt": b"mine"}
    hub.repos["acme/tuned"] = Repo({"main": dict(old)})
    assert push(TO, force=True).result["commit"]
    found = hub.repos["acme/tuned"].branches["main"]
    assert found["notes.txt"] == b"mine"
    assert "model.safetensors" not in found, "weights of an earlier model"


def test_a_hub_that_does_not_answer_is_a_matter_of_the_network(push: Push, free_port: Callable[[], int]) -> None:
    made = push(TO, {"HF_TOKEN": TOKEN, "HF_ENDPOINT": f"http://127.0.0.1:{free_port()}"})
    assert made.end.reason == TaskReason.NETWORK
    assert "Cannot reach the Hub" in str(made.end.error)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_push_that_is_killed_is_repeated(
    when: str,
    job: Callable[[Mapping[str, str]], Runner],
    hub: Hub,
    adapter: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kill comes while the first file is sent, or once all are there and the job has not heard of it."""
    runner = job({"HF_TOKEN": TOKEN})
    from tests.fakes import hub as double

    commit, held = double._Handler._commit, []

    def slow(self: object, body: bytes, name: str, revision: str) -> object:
        if when == "after":
            commit(self, body, name, revision)  # type: ignore[arg-type]
        held.append(name)
        time.sleep(5)
        raise double._Refused(500, "")

    with monkeypatch.context() as holding:
        holding.setattr(double._Handler, "_commit", slow)
        handle = runner.launch(spec_of(TO), inputs=inputs(adapter))
        assert runner.kill(handle, lambda _: bool(held))
    there = hub.repos["acme/tuned"].branches["main"].keys()
    assert ("adapter_config.json" in there) is (when == "after")
    again = Pushed(runner.end(runner.launch(spec_of(TO), inputs=inputs(adapter))), runner)
    assert "adapter_config.json" in again.result["files"]
    assert (
        hub.repos["acme/tuned"].branches["main"]["adapter_model.safetensors"]
        == (adapter / "adapter_model.safetensors").read_bytes()
    )
