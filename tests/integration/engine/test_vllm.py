"""The engine on vLLM (its build for CPUs) as a process of its own: held to what every engine is, and to being warm."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.engine.shared import (
    FAULTS,
    GREEDY,
    MODEL,
    PROMPTS,
    a_request_that_cannot_be_answered_is_named,
    a_stream_tells_the_whole_answer,
    adapters_answer_by_name,
    answers,
    answers_obey_their_schema,
    make_adapters,
    who_leaves_ends_his_own_answer_alone,
)
from tests.libraries import required
from tunefleet.runtime import envs
from tunefleet.runtime.warm import engine_registry
from tunefleet.workloads.engine import client
from tunefleet.workloads.engine.client import WarmEngine, connect
from tunefleet.workloads.engine.protocol import EngineAdapter, EngineModel, Request, Sampling

required("torch", "peft")


# PEFT asks the model for a name that Transformers has deprecated.
_PEFT = "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200), pytest.mark.filterwarnings(_PEFT)]

PATIENCE_S = 600.0
OPTIONS = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, missing: Callable[[str], None]) -> Iterator[str]:
    if (reason := envs.reason("vllm")) is not None:
        missing(reason)
    name = str(tmp_path_factory.mktemp("site"))
    with pytest.MonkeyPatch.context() as patch:
        for module, wait in (
            (client, "_BIND_S"),
            (client, "_PARTING_S"),
            (engine_registry, "_ANSWER_S"),
            (engine_registry, "_END_S"),
        ):
            patch.setattr(module, wait, PATIENCE_S)
        yield name
        for engine in engine_registry.running():
            if engine.site == name:
                engine_registry.leave(engine, force=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> EngineModel:
    named = make_adapters(tmp_path_factory.mktemp("adapters")).items()
    adapters = tuple(EngineAdapter(name, str(path)) for name, path in named)
    return EngineModel(MODEL, "first", adapters=adapters, options=OPTIONS, engine="vllm")


@pytest.fixture(scope="module")
def engine(site: str, model: EngineModel) -> Iterator[WarmEngine]:
    made = connect(model, name=site)
    assert made.name == "vllm"
    yield made
    made.close()


def test_adapters_answer_by_name(engine: WarmEngine) -> None:
    adapters_answer_by_name(engine)


def test_answers_obey_a_schema(engine: WarmEngine) -> None:
    answers_obey_their_schema(engine)


def test_a_stream_tells_the_whole_answer(engine: WarmEngine) -> None:
    a_stream_tells_the_whole_answer(engine)


def test_who_leaves_ends_his_own_answer_alone(engine: WarmEngine) -> None:
    who_leaves_ends_his_own_answer_alone(engine)


@pytest.mark.parametrize(("request_", "message"), FAULTS)
def test_a_request_that_cannot_be_answered_is_named(engine: WarmEngine, request_: Request, message: str) -> None:
    a_request_that_cannot_be_answered_is_named(engine, request_, message)


def test_each_place_tells_its_likeliest_tokens(engine: WarmEngine) -> None:
    told = answers(engine, Request(0, PROMPTS[0], Sampling(temperature=0, max_tokens=4, logprobs=3)))[0][0]
    assert told.logprobs is not None
    assert "".join(place[0]["token"] for place in told.logprobs) == told.text
    assert all(len({each["id"] for each in place}) == 3 for place in told.logprobs)


def test_one_that_is_killed_is_started_again_and_asked_what_is_left(engine: WarmEngine) -> None:
    requests = [Request(key, text, GREEDY) for key, text in enumerate(PROMPTS)]
    before = answers(engine, *requests)
    pid = engine.pid
    pieces = engine.stream(Request(9, PROMPTS[0], Sampling(temperature=0, max_tokens=400, min_tokens=400)))
    heard = next(pieces)
    os.kill(pid, signal.SIGKILL)
    heard += "".join(pieces)
    assert engine.pid != pid
    assert heard.startswith(before[0][0].text[: len(heard)])
    assert answers(engine, *requests) == before


def test_two_models_in_a_row_do_not_mix(site: str, engine: WarmEngine, model: EngineModel, tmp_path: Path) -> None:
    request = Request(0, PROMPTS[0], GREEDY)
    said = adapters_answer_by_name(engine)
    engine.close()
    red = model.adapters[0]
    merged = EngineAdapter(red.name, red.path, merge=True)
    other = connect(EngineModel(MODEL, "second", adapters=(merged,), options=OPTIONS, engine="vllm"), name=site)
    assert not other.was_loaded
    assert [each.model for each in engine_registry.running() if each.site == site] == ["second"]
    assert answers(other, request)[0][0].text == said["red.ish"] != said[None]
    other.close()
    first = connect(model, name=site)
    assert not first.was_loaded
    assert answers(first, request)[0][0].text == said[None]
    first.close()
