"""The handler of RunPod's container, without RunPod: what it reads, what it says, and what it keeps to itself."""

from __future__ import annotations

import importlib
import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tunefleet.campaign import runpod
from tunefleet.errors import InputError


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Parts, Repository, JobInput, handler, handlers
    pytest.importorskip("huggingface_hub")

    from tunefleet.workloads.runpod import handler as handlers
    from tunefleet.workloads.runpod.handler import JobInput, handler
    from tunefleet.workloads.runpod.repository import Parts, Repository


ROOT = Path(__file__).resolve().parents[3]
TOKEN = "hf_secret_0123456789"
INPUT = {
    "lora_model_id": "org/adapter", "base_model_id": "org/base", "anonimize": False, "hf_token": TOKEN,
    "hf_username": "me",
}  # fmt: skip


def test_the_documents_input_is_read_and_the_endpoint_may_have_the_token() -> None:
    assert JobInput.read(INPUT, {}) == JobInput("org/adapter", "org/base", "me", TOKEN)
    short = {"lora_model_id": "org/adapter", "base_model_id": "org/base", "private": False, "anonimize": True}
    of_endpoint = {"HF_TOKEN": TOKEN, "HF_USERNAME": "me"}
    assert JobInput.read(short, of_endpoint) == JobInput("org/adapter", "org/base", "me", TOKEN, True, False)
    assert TOKEN not in repr(JobInput.read(INPUT, {}))
    assert not JobInput.read(INPUT, {}).code, "no code is run that nobody asked for"
    assert JobInput.read({**INPUT, "trust_remote_code": True}, {}).code
    assert JobInput.read({**INPUT, "lora_revision": "c1"}, {}).revision == "c1"
    assert JobInput.read({**INPUT, "merge_anew": True}, {}).merge_again
    with pytest.raises(InputError, match="lacks base_model_id, hf_username, hf_token"):
        JobInput.read({"lora_model_id": "org/adapter", "base_model_id": ""}, {})
    with pytest.raises(InputError, match="anonimize of the job's input must be true or false"):
        JobInput.read({**INPUT, "anonimize": "False"}, {})


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts("org/adapter", "1", "org/base", "2", whole=False)
    monkeypatch.setattr(Repository, "parts", lambda *_: parts)
    monkeypatch.setattr(Repository, "name", lambda *_, **__: ("me/merged-adapter", False))


ENDS: list[tuple[int, str, str]] = [
    (-9, "out of memory: the system killed the merge", "The merge at RunPod ran out of memory."),
    (3, "the merge ended with code 3, without an error message", "The merge at RunPod failed"),
]


@pytest.mark.usefixtures("placed")
@pytest.mark.parametrize(("code", "said", "sentence"), ENDS)
async def test_how_a_merge_ended_is_said_in_words_that_the_campaign_reads(
    monkeypatch: pytest.MonkeyPatch, code: int, said: str, sentence: str
) -> None:
    environments: list[dict[str, str]] = []

    async def ran(arguments: list[str], environment: dict[str, str]) -> int:
        environments.append(environment)
        return code

    monkeypatch.setenv("RUNPOD_AI_API_KEY", "key-of-the-endpoint")
    monkeypatch.setattr(handlers, "_ran", ran)
    found = await handler({"id": "job-1", "input": INPUT})
    assert found == {"error": said, "status": "failed"}
    assert sentence in str(runpod.merge_failure(found["error"]))
    assert environments[0]["HF_TOKEN"] == TOKEN
    assert not [name for name in environments[0] if name.startswith("RUNPOD_")]


async def test_no_token_is_in_an_answer_or_a_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(wanted: JobInput) -> dict[str, Any]:
        raise ValueError(f"something with {wanted.token} in it")

    monkeypatch.setattr(handlers, "_done", broken)
    with caplog.at_level(logging.DEBUG):
        found = await handler({"id": "job-1", "input": INPUT})
    assert found == {"error": "ValueError: something with *** in it", "status": "failed"}
    assert TOKEN not in caplog.text


def test_the_container_has_what_it_starts() -> None:
    lines = (ROOT / "Dockerfile.runpod").read_text().replace("\\\n", " ").splitlines()
    copied = [each for line in lines if line.startswith("COPY") for each in line.split()[1:-1]]
    assert copied
    assert [each for each in copied if not (ROOT / each).exists()] == []
    (command,) = [line for line in lines if line.startswith("CMD")]
    module = re.findall(r'"([^"]+)"', command)[-1]
    assert module == "tunefleet.workloads.runpod"
    assert importlib.util.find_spec(f"{module}.__main__") is not None
    assert sys.version_info >= (3, 11)
