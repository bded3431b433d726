"""The engine on Transformers, with the shipped model: what it draws against what the library draws by hand."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
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
from tunefleet.errors import ModelError
from tunefleet.workloads import assets
from tunefleet.workloads.engine.protocol import Choice, EngineAdapter, EngineModel, Request, Sampling
from tunefleet.workloads.faults import ClientGoneError


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global AutoModelForCausalLM, AutoTokenizer, TransformersEngine, open_engine, torch
    pytest.importorskip("torch")
    pytest.importorskip("peft")

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tunefleet.workloads.engine.server import open_engine
    from tunefleet.workloads.engine.transformers_backend import TransformersEngine


# PEFT asks the model for a name that Transformers has deprecated.
_PEFT = "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(300), pytest.mark.filterwarnings(_PEFT)]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_adapters(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def engine(adapters: dict[str, Path]) -> Iterator[TransformersEngine]:
    named = tuple(EngineAdapter(name, str(path)) for name, path in adapters.items())
    made = open_engine(EngineModel(MODEL, MODEL, adapters=named))
    assert isinstance(made, TransformersEngine)
    yield made
    made.close()


def one(engine: TransformersEngine, text: str, **drawn: object) -> Choice:
    return answers(engine, Request(0, text, Sampling(**drawn)))[0][0]  # type: ignore[arg-type]


def test_greedy_answers_are_those_of_the_library(engine: TransformersEngine) -> None:
    path = assets.locate(MODEL, "model")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    for penalty in (None, 1.3):
        drawn = Sampling(temperature=0, max_tokens=16, repetition_penalty=penalty)
        found = answers(engine, *(Request(key, text, drawn) for key, text in enumerate(PROMPTS)))
        for key, text in enumerate(PROMPTS):
            tokens = tokenizer(text, return_tensors="pt")
            whole = model.generate(**tokens, max_new_tokens=16, do_sample=False, repetition_penalty=penalty or 1.0)
            by_hand = tokenizer.decode(whole[0][tokens["input_ids"].shape[1] :], skip_special_tokens=True)
            assert found[key][0].text == by_hand


def test_a_seed_draws_the_same_whatever_else_is_in_the_batch(engine: TransformersEngine) -> None:
    requests = [Request(key, text, Sampling(max_tokens=12, seed=7 + key, n=2)) for key, text in enumerate(PROMPTS)]
    together = answers(engine, *requests)
    assert {request.key: answers(engine, request)[request.key] for request in requests} == together
    first, second = together[0]
    assert first.text != second.text
    pieces = list(engine.stream(Request(0, PROMPTS[0], Sampling(max_tokens=12, seed=7))))
    assert len(pieces) > 1
    assert "".join(pieces) == first.text
    assert (
        one(engine, PROMPTS[0], max_tokens=40, temperature=5.0).text
        != one(engine, PROMPTS[0], max_tokens=40, temperature=5.0).text
    )


def test_how_an_answer_ends(engine: TransformersEngine) -> None:
    free = one(engine, PROMPTS[0], temperature=0, max_tokens=40)
    word = free.text.split()[3]
    stopped = one(engine, PROMPTS[0], temperature=0, max_tokens=40, stop=(word, "never said"))
    assert stopped.text == free.text[: free.text.index(word)]
    assert stopped.finish_reason == "stop"
    assert free.tokens > stopped.tokens
    tokenizer = AutoTokenizer.from_pretrained(assets.locate(MODEL, "model"))
    ids = tokenizer(free.text, add_special_tokens=False)["input_ids"]
    by_token = one(engine, PROMPTS[0], temperature=0, max_tokens=40, stop_token_ids=(ids[5],))
    assert by_token.text == tokenizer.decode(ids[: ids.index(ids[5])])
    # The model would end sooner: its end is not drawn before.
    long = one(engine, "How many", temperature=0, max_tokens=60, min_tokens=60)
    assert (long.tokens, long.finish_reason) == (60, "length")


def test_what_is_drawn_among(engine: TransformersEngine) -> None:
    greedy = one(engine, PROMPTS[0], temperature=0, max_tokens=16).text
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert one(engine, PROMPTS[0], max_tokens=16, temperature=1.0, **narrow).text == greedy
    banned = one(engine, PROMPTS[0], temperature=0, max_tokens=16, bad_words=(" the", "10", greedy.split()[0]))
    assert not any(word in banned.text for word in (" the", "10", greedy.split()[0]))
    told = one(engine, PROMPTS[0], temperature=0, max_tokens=4, logprobs=3)
    assert told.logprobs is not None
    assert len(told.logprobs) == 4
    assert "".join(place[0]["token"] for place in told.logprobs) == told.text, "the likeliest come first"
    assert all(len({each["id"] for each in place}) == 3 for place in told.logprobs)
    assert all(sum(math.exp(each["logprob"]) for each in place) <= 1 for place in told.logprobs)
    long = {"temperature": 0, "min_tokens": 60, "max_tokens": 60}
    varied = one(engine, PROMPTS[0], **long, frequency_penalty=2.0, presence_penalty=2.0).text
    plain = one(engine, PROMPTS[0], **long).text
    assert len(set(varied.split())) / len(varied.split()) > len(set(plain.split())) / len(plain.split())


def test_answers_obey_a_schema(engine: TransformersEngine) -> None:
    answers_obey_their_schema(engine)


def test_a_stream_tells_the_whole_answer(engine: TransformersEngine) -> None:
    a_stream_tells_the_whole_answer(engine)


def test_who_leaves_ends_his_own_answer_alone(engine: TransformersEngine) -> None:
    who_leaves_ends_his_own_answer_alone(engine)


def test_adapters_answer_by_name_and_merged_ones_always(engine: TransformersEngine, adapters: dict[str, Path]) -> None:
    found = adapters_answer_by_name(engine)
    merged = EngineModel(MODEL, MODEL, adapters=(EngineAdapter("red", str(adapters["red.ish"]), merge=True),))
    other = open_engine(merged)
    assert isinstance(other, TransformersEngine)
    assert one(other, PROMPTS[0], temperature=0, max_tokens=16).text == found["red.ish"]
    nothing = EngineAdapter("red", str(adapters["red.ish"]), scale=1e-9)
    faint = open_engine(EngineModel(MODEL, MODEL, adapters=(nothing,)))
    assert isinstance(faint, TransformersEngine)
    assert answers(faint, Request(0, PROMPTS[0], GREEDY, "red"))[0][0].text == found[None]


def test_two_who_ask_at_once_take_turns(engine: TransformersEngine) -> None:
    long = Sampling(max_tokens=200, min_tokens=200, seed=1)
    order: list[str] = []

    def listen(name: str, adapter: str | None) -> None:
        for _ in engine.stream(Request(0, PROMPTS[0], long, adapter)):
            order.append(name)

    threads = [threading.Thread(target=listen, args=each) for each in (("base", None), ("blue", "blue"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first_over = order[::-1].index(order[0])
    assert first_over < len(order) - order.count(order[0]), "the second one waited until the first had ended"
    alone = "".join(engine.stream(Request(0, PROMPTS[0], long, "blue")))
    assert alone == answers(engine, Request(0, PROMPTS[0], long, "blue"))[0][0].text


def test_too_many_at_once_are_halved_and_somebody_is_told(
    monkeypatch: pytest.MonkeyPatch, engine: TransformersEngine
) -> None:
    compute, sizes, said = engine._compute, [], []

    def small(batch: list[object], *rest: object) -> None:
        sizes.append(len(batch))
        if len(batch) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        compute(batch, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "_compute", small)
    monkeypatch.setattr(engine, "_say", said.append)
    found = answers(engine, *(Request(key, f"{key} apples and", GREEDY) for key in range(6)))
    monkeypatch.undo()
    assert sizes[:3] == [6, 3, 1] or sizes[:2] == [6, 3]
    assert "Out of memory" in said[0]
    assert found == answers(engine, *(Request(key, f"{key} apples and", GREEDY) for key in range(6)))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        *FAULTS,
        pytest.param(Request(8, "x", Sampling(schema='{"type": "what"}')), "JSON Schema is not supported", id="schema"),
    ],
)
def test_a_request_that_cannot_be_answered_is_named(
    engine: TransformersEngine, request_: Request, message: str
) -> None:
    a_request_that_cannot_be_answered_is_named(engine, request_, message)


def test_who_is_gone_gets_no_more_and_what_is_no_adapter_is_said(engine: TransformersEngine, tmp_path: Path) -> None:
    asked = 0

    def gone() -> bool:
        nonlocal asked
        asked += 1
        return asked > 5

    with pytest.raises(ClientGoneError):
        list(engine.generate([Request(0, "x", Sampling(max_tokens=400, min_tokens=400))], gone=gone))
    assert asked == 6
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be loaded onto this model"):
        open_engine(EngineModel(MODEL, MODEL, adapters=(EngineAdapter("none", str(tmp_path)),)))
