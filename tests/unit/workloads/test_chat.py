"""A chat's process: which engines it holds, and what a turn becomes of."""

from __future__ import annotations

import json
import os
import resource
import socket
import threading
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llguidance
import pytest

from tunefleet.errors import InputError
from tunefleet.schemas.chat import ChatMessage, ChatPiece, ChatRequest
from tunefleet.spec import ChatTaskSpec
from tunefleet.spec.options.generation import InferenceSpec
from tunefleet.workloads.engine.protocol import Choice, EngineModel, Request
from tunefleet.workloads.engine.structured_output import _grammar


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Models, Prompts, _gone, answer, chat_models, sampling, share_of_two
    from tunefleet.workloads.chat import models as chat_models
    from tunefleet.workloads.chat.models import Models, share_of_two
    from tunefleet.workloads.chat.run import _gone, answer, sampling
    from tunefleet.workloads.engine.prompt_encoder import Prompts


GB = 10**9
SPEC = ChatTaskSpec.model_validate(
    {
        "taskType": "chat",
        "model": {"source": {"identifier": "org/base"}, "vllm": {}},
        "checkpoint": {"load": {"taskId": "task-1"}},
    }
)
HELLO = ChatRequest(messages=(ChatMessage(role="user", content="Hello?"),))


class Words:
    """A tokenizer of words, with a template that names who speaks."""

    bos_token = eos_token = eos_token_id = None
    chat_template = "it has one"

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [list(range(len(text.split()))) for text in texts]}

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return " ".join(f"<{each['role']}> {each['content']}" for each in messages)


class FakeEngine:
    """Renders and counts as real ones do, and answers with the prompt."""

    has_template = True

    def __init__(self) -> None:
        prompts = Prompts(Words(), 9, ())
        self.render, self._tokens = prompts.render, prompts.tokens

    def stream(self, request: Request) -> Generator[str, None, Choice]:
        count = len(self._tokens(request))
        yield request.prompt
        return Choice(request.prompt, "stop", 1, prompt_tokens=count)


def one_engine() -> Any:
    return SimpleNamespace(default="base", is_open=lambda _: True, of=lambda _: (FakeEngine(), None))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, EngineModel]:
    """Two models with different weights on a GPU with vLLM; what is opened, by how it is told apart."""
    found: dict[str, EngineModel] = {}

    def connect(model: EngineModel, *, apart: str, **_: Any) -> FakeEngine:
        found[apart] = model
        return FakeEngine()

    def engine_model(spec: ChatTaskSpec, *_: Any) -> EngineModel:
        folder = tmp_path / ("base" if spec.start is None else "tuned")
        folder.mkdir(exist_ok=True)
        return EngineModel(str(folder), "org/base", engine="vllm")

    gpu = SimpleNamespace(uuid="GPU-1", memory_total_bytes=80 * GB)
    monkeypatch.setattr(chat_models, "connect", connect)
    monkeypatch.setattr(chat_models, "engine_model", engine_model)
    monkeypatch.setattr(chat_models.engines, "choose", lambda *_: "vllm")
    monkeypatch.setattr(chat_models, "read_gpus", lambda: [gpu])
    return found


def made(said: list[str], tmp_path: Path) -> Models:
    job: Any = SimpleNamespace(gpus=["GPU-1"], inputs={})
    return Models(job, SPEC, tmp_path, said.append, said.append)


def test_two_engines_on_a_gpu_have_room_beside_each_other(opened: dict[str, EngineModel], tmp_path: Path) -> None:
    said: list[str] = []
    held = made(said, tmp_path)
    assert "share the GPU: each gets 45%" in said[0], "it is said before the chat is ready"
    assert held.names == ("base", "tuned")
    assert (held.is_open("tuned"), held.is_open("base")) == (True, False)
    held.of("base")
    assert held.is_open("base")
    assert "is loading next to the tuned model" in said[1]
    assert {apart: model.options["gpu_memory_utilization"] for apart, model in opened.items()} == {
        "": 0.45, "base": 0.45,
    }  # fmt: skip


def test_a_model_that_takes_more_than_half_of_the_gpu_is_talked_with_alone(
    opened: dict[str, EngineModel], tmp_path: Path
) -> None:
    (tmp_path / "tuned").mkdir()
    with (tmp_path / "tuned" / "model.safetensors").open("wb") as file:
        os.truncate(file.fileno(), 60 * GB)
    said: list[str] = []
    held = made(said, tmp_path)
    assert "does not fit" in said[0]
    assert held.names == ("tuned",)
    assert "gpu_memory_utilization" not in opened[""].options, "it has the GPU to itself"
    with pytest.raises(InputError, match="no model 'base'"):
        held.of("base")


def test_a_share_is_never_more_than_was_asked_for() -> None:
    assert share_of_two([GB, GB], None, 0.3) == 0.3
    assert share_of_two([GB, GB], 80 * GB, 0.9) == 0.45
    assert share_of_two([GB, 31 * GB], 80 * GB, None) is None


def test_loading_the_base_holds_up_nobody_who_asks_the_tuned_one(
    opened: dict[str, EngineModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = made([], tmp_path)
    begun, go_on = threading.Event(), threading.Event()

    def slow(*_: Any, **__: Any) -> FakeEngine:
        begun.set()
        assert go_on.wait(60)
        return FakeEngine()

    monkeypatch.setattr(chat_models, "connect", slow)
    loading = threading.Thread(target=held.of, args=("base",), daemon=True)
    loading.start()
    assert begun.wait(60)
    asking = threading.Thread(target=held.of, args=("tuned",), daemon=True)
    asking.start()
    asking.join(30)
    assert not asking.is_alive()
    go_on.set()
    loading.join(60)
    assert held.is_open("base")


def test_who_asks_a_model_that_is_not_loaded_yet_is_told() -> None:
    held = SimpleNamespace(default="tuned", is_open=lambda name: name != "base", of=lambda _: (FakeEngine(), None))
    first = next(iter(answer(held, InferenceSpec(), HELLO.model_copy(update={"model": "base"}))))  # type: ignore[arg-type]
    assert first.waiting == "Loading the model for 'base'."
    assert next(iter(answer(held, InferenceSpec(), HELLO))).waiting is None  # type: ignore[arg-type]


def test_a_conversation_is_rendered_as_the_spec_has_it() -> None:
    messages = (
        ChatMessage(role="user", content="Hello?"),
        ChatMessage(role="assistant", content="Yes."),
        ChatMessage(role="user", content="Who?"),
    )
    request = ChatRequest(messages=messages)
    first = next(iter(answer(one_engine(), InferenceSpec(system_prompt="Brief."), request)))
    assert first.text == "<system> Brief. <user> Hello? <assistant> Yes. <user> Who?"
    first = next(iter(answer(one_engine(), InferenceSpec(chat_template=False), request)))
    assert first.text == "Hello?\nYes.\nWho?"


def test_a_conversation_that_is_too_long_is_told_in_words_of_a_chat() -> None:
    request = ChatRequest(messages=(ChatMessage(role="user", content="one two three four five six seven eight"),))
    with pytest.raises(InputError) as failed:
        list(answer(one_engine(), InferenceSpec(), request))
    assert failed.value.message == "The conversation has 9 tokens, but the model supports 9 with the answer."
    assert "/reset" in str(failed.value.hint)
    fits = list(answer(one_engine(), InferenceSpec(), HELLO))
    assert fits[-1] == ChatPiece(finish="stop", usage=fits[-1].usage)


def test_an_answer_may_be_any_json_object() -> None:
    request = ChatRequest.model_validate({**HELLO.model_dump(), "response_format": {"type": "json_object"}})
    schema = sampling(InferenceSpec(), request).schema
    assert schema is not None
    assert llguidance.LLMatcher.validate_grammar(_grammar(llguidance, schema)) == ""
    assert json.loads(schema) == {"type": "object"}


def test_who_has_gone_is_seen_whatever_number_the_descriptor_has() -> None:
    wanted = 1500
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft <= wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted + 10, hard), hard))
    ours, theirs = socket.socketpair()
    high = socket.socket(fileno=os.dup2(ours.fileno(), wanted))
    try:
        assert not _gone(high)
        theirs.close()
        assert _gone(high)
    finally:
        ours.close()
        high.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
