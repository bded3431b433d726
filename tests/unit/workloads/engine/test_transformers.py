"""The engine on Transformers, where a model has its limits: learned positions, and logits that are no numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.workloads.engine.conftest import CONTEXT
from tunefleet.workloads.engine.protocol import Choice, EngineModel, Request, Sampling
from tunefleet.workloads.faults import RequestError


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global TransformersEngine, open_engine, torch
    import torch

    from tunefleet.workloads.engine.server import open_engine
    from tunefleet.workloads.engine.transformers_backend import TransformersEngine


pytestmark = pytest.mark.torch


@pytest.fixture
def engine(gpt2: Path) -> Iterator[TransformersEngine]:
    made = open_engine(EngineModel(str(gpt2), "gpt2"))
    assert isinstance(made, TransformersEngine)
    yield made
    made.close()


def answers(engine: TransformersEngine, *requests: Request) -> dict[int, tuple[Choice, ...]]:
    return {answer.key: answer.choices for answer in engine.generate(requests)}


def test_a_short_and_a_long_prompt_together_never_go_beyond_the_positions_of_the_model(
    engine: TransformersEngine,
) -> None:
    long = "Anna has seven apples and gives three of them to her brother. " * 2
    drawn = Sampling(temperature=0, max_tokens=50, min_tokens=50)
    requests = [Request(0, long, drawn), Request(1, "A", drawn), Request(2, "How many apples", drawn)]
    lengths = {answer.key: answer.prompt_tokens for answer in engine.generate(requests)}
    assert lengths[0] + 50 > CONTEXT > lengths[1] + 50, "the long one fills the context, the short one needs more steps"
    together = answers(engine, *requests)
    assert {key: choices[0].tokens for key, choices in together.items()} == {0: CONTEXT - lengths[0], 1: 50, 2: 50}
    assert together == {request.key: answers(engine, request)[request.key] for request in requests}


def test_a_device_that_takes_nothing_more_breaks_the_engine_and_a_lack_of_memory_does_not(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fault, broken in (("CUDA error: out of memory", False), ("CUDA error: device-side assert triggered", True)):

        def fails(*_: object, fault: str = fault) -> None:
            raise RuntimeError(fault)

        monkeypatch.setattr(engine, "_compute", fails)
        with pytest.raises(RuntimeError, match="CUDA error"):
            answers(engine, Request(0, "How many"))
        assert (engine.broken is not None) is broken


def test_logits_that_are_no_numbers_fail_their_prompt_and_the_others_are_answered(engine: TransformersEngine) -> None:
    with torch.no_grad():
        engine._model.transformer.wpe.weight[20] = torch.nan
    long = "Anna has seven apples and gives three of them to her brother. " * 2
    for temperature in (0.0, 1.0):
        drawn = Sampling(temperature=temperature, max_tokens=4)
        given = engine.generate([Request(0, long, drawn), Request(1, "How many", drawn)])
        assert next(given).key == 1
        with pytest.raises(
            RequestError, match=r"Prompt 0 .* logits are NaN or infinite\. Try dtype: float32"
        ) as caught:
            next(given)
        assert caught.value.key == 0
        with pytest.raises(RequestError, match="NaN or infinite"):
            list(engine.stream(Request(0, long, drawn)))


def test_words_that_leave_no_token_end_an_answer_without_blame(engine: TransformersEngine) -> None:
    tokenizer = engine._tokenizer
    # Every character is forbidden, and ends are not drawn before the shortest answer: nothing can follow.
    every = tuple({character for token in range(len(tokenizer)) for character in tokenizer.decode([token])})
    drawn = Sampling(max_tokens=4, min_tokens=2, bad_words=every, skip_special_tokens=False)
    (answer,) = engine.generate([Request(0, "How", drawn)])
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("", "abort")
