"""What every engine is held to, whatever computes; each test module of an engine calls all of it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tunefleet.workloads import assets
from tunefleet.workloads.engine.protocol import Choice, Engine, Request, Sampling
from tunefleet.workloads.faults import RequestError

MODEL = "builtin:gsm8k-llama-2m"
PROMPTS = ("A train has 12 cars and", "How", "Anna buys 3 apples for 2 dollars each. Then she sells one of them to")
GREEDY = Sampling(temperature=0, max_tokens=16)
SCHEMA = {
    "type": "object",
    "properties": {"who": {"enum": ["Anna", "Ben"]}, "n": {"type": "integer", "minimum": 0, "maximum": 50}},
    "required": ["who", "n"],
    "additionalProperties": False,
}


def make_adapter(folder: Path, seed: int, rank: int = 4) -> Path:
    """Write an adapter that changes answers; its weights are drawn, not trained."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(assets.locate(MODEL, "model"))
    model = get_peft_model(base, LoraConfig(r=rank, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, weights in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=0.3)
    model.save_pretrained(folder)
    return folder


def make_adapters(root: Path) -> dict[str, Path]:
    """Write two adapters of different ranks."""
    return {"red.ish": make_adapter(root / "red", 1), "blue": make_adapter(root / "blue", 2, rank=8)}


def answers(engine: Engine, *requests: Request) -> dict[int, tuple[Choice, ...]]:
    return {answer.key: answer.choices for answer in engine.generate(requests)}


def adapters_answer_by_name(engine: Engine) -> dict[str | None, str]:
    """Each request is answered by the adapter that it names, in whatever order they come; returns what each says."""
    names: list[str | None] = [None, "red.ish", "blue", None, "red.ish"]
    requests = [Request(key, PROMPTS[0], GREEDY, name) for key, name in enumerate(names)]
    random.Random(0).shuffle(requests)
    found = {key: choices[0].text for key, choices in answers(engine, *requests).items()}
    assert found[0] == found[3] != found[1] == found[4]
    assert len(set(found.values())) == 3
    return {name: found[key] for key, name in enumerate(names)}


def answers_obey_their_schema(engine: Engine) -> None:
    drawn = Sampling(max_tokens=60, temperature=1.5, n=4, schema=json.dumps(SCHEMA))
    choices = answers(engine, Request(0, PROMPTS[2], drawn))[0]
    assert len(choices) == 4
    for choice in choices:
        found = json.loads(choice.text)
        assert found["who"] in {"Anna", "Ben"}
        assert 0 <= found["n"] <= 50
        assert choice.finish_reason == "stop"


def a_stream_tells_the_whole_answer(engine: Engine, names: Sequence[str | None] = (None, "blue")) -> None:
    for name in names:
        request = Request(0, PROMPTS[0], Sampling(temperature=0, max_tokens=24, min_tokens=24), name)
        pieces, told = engine.stream(request), []
        while True:
            try:
                told.append(next(pieces))
            except StopIteration as end:
                whole: Choice = end.value
                break
        assert len(told) > 1
        assert "".join(told) == whole.text == answers(engine, request)[0][0].text
        assert (whole.finish_reason, whole.tokens) == ("length", 24)


def who_leaves_ends_his_own_answer_alone(engine: Engine) -> None:
    long = Sampling(temperature=0, max_tokens=400, min_tokens=400)
    leaves, stays = (engine.stream(Request(0, PROMPTS[0], long, name)) for name in (None, "blue"))
    heard = next(stays)
    assert next(leaves)
    leaves.close()
    heard += "".join(stays)
    assert heard == answers(engine, Request(0, PROMPTS[0], long, "blue"))[0][0].text


def a_request_that_cannot_be_answered_is_named(engine: Engine, request: Request, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        answers(engine, Request(1, "fine"), request)
    assert caught.value.key == request.key


FAULTS = [
    pytest.param(Request(5, "word " * 600), "Prompt 5 has .* the model supports 512", id="long"),
    pytest.param(Request(6, ""), "Prompt 6 is empty", id="empty"),
    pytest.param(Request(7, "x", adapter="green"), "Prompt 7 names the adapter 'green'", id="adapter"),
]
