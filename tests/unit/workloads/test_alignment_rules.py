"""Rewards by rules, the odds of ORPO, and how exchanges are cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter

from tunefleet.errors import DataError, InputError
from tunefleet.spec import load_task_spec
from tunefleet.spec.options.rewards import Reward
from tunefleet.workloads import assets


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Completions, Encoder, GrpoMethod, KtoMethod, Limits, Source, by_rule, final_answer, load_tokenizer
    global odds_ratio
    global torch
    pytest.importorskip("trl")

    import torch

    from tunefleet.workloads.common.base_model import Source, load_tokenizer
    from tunefleet.workloads.data.tokenization import Encoder
    from tunefleet.workloads.preference.dpo import odds_ratio
    from tunefleet.workloads.preference.grpo import GrpoMethod
    from tunefleet.workloads.preference.kto import KtoMethod
    from tunefleet.workloads.preference.preference_rows import Limits
    from tunefleet.workloads.preference.reward_functions import Completions, by_rule, final_answer


pytestmark = pytest.mark.torch
BUILTIN = "builtin:gsm8k-llama-2m"


def judge(rule: dict[str, Any], answers: list[str], references: list[str | None] | None = None) -> list[float]:
    wanted: Any = TypeAdapter(Reward).validate_python(rule)
    given = references or [None] * len(answers)
    tokens = [list(range(len(answer.split()))) for answer in answers]
    return by_rule(wanted)(Completions(["?"] * len(answers), answers, given, tokens))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("9 * 2 = <<9*2=18>>18\n#### 18", "18"),
        ("so 26\nA: $1,026.50.", "1026.5"),
        ("first 3, then 4.0", "4"),
        ("none at all", None),
        ("#### -7", "-7"),
        ("#### the total is 18 dollars\n#### 20", "18"),
        ("so 5\n####", None),
        ("#### \n18", None),
        ("#### Yes.", "yes"),
    ],
)
def test_the_final_answer_is_found_and_spelled_alike(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


def test_rewards_by_rules() -> None:
    assert judge({"type": "exact_match"}, ["it is 18", "A: 17", ""], ["#### 18"] * 3) == [1, 0, 0]
    assert judge({"type": "exact_match", "pattern": "= (.*)"}, ["x = Paris"], ["the capital = paris"]) == [1]
    assert judge({"type": "regex", "pattern": r"\d+"}, ["a 1", "a"]) == [1, 0]
    assert judge({"type": "regex", "pattern": r"\d+", "whole": True}, ["a 1", "12"]) == [0, 1]
    shaped = ["<think>a\nb</think> <answer>c</answer>", "<answer>c</answer><think>a</think>", "<think>a</think>"]
    assert judge({"type": "format"}, shaped) == [1, 0, 0]
    lengths = judge({"type": "length", "min_tokens": 2, "max_tokens": 4}, ["a", "a b", "a b c d e f", "a " * 9])
    assert lengths == [0.5, 1, 0.5, 0]


def test_a_function_rewards_and_one_that_is_not_there_is_named() -> None:
    own = {"type": "function", "function": f"{__name__}:by_length"}
    assert judge(own, ["a", "abc"]) == [1, 3]
    with pytest.raises(InputError, match=r"no_such_module:good cannot be imported"):
        judge({"type": "function", "function": "no_such_module:good"}, ["a"])
    with pytest.raises(InputError, match="2 rewards for 1 answers"):
        judge({"type": "function", "function": f"{__name__}:too_many"}, ["a"])


def raises(**_: Any) -> list[float]:
    return [{}["x"]]


def breaks_later(**_: Any) -> Any:
    yield 1.0
    raise KeyError("x")


def runs_out(**_: Any) -> list[float]:
    raise torch.OutOfMemoryError("CUDA out of memory")


def none_of_a_number(**_: Any) -> list[float]:
    return [1.0, float("nan")]


@pytest.mark.parametrize("name", ["raises", "breaks_later"])
def test_a_function_that_fails_is_named_with_what_it_raised(name: str) -> None:
    with pytest.raises(InputError, match=f"The reward function .*:{name} failed: KeyError: 'x'") as caught:
        judge({"type": "function", "function": f"{__name__}:{name}"}, ["a"])
    assert f"in {name}" in (caught.value.detail or "")
    with pytest.raises(torch.OutOfMemoryError):  # half the batch may help
        judge({"type": "function", "function": f"{__name__}:runs_out"}, ["a"])


def test_a_reward_that_is_no_number_is_an_error_that_quotes_the_answer() -> None:
    own = {"type": "function", "function": f"{__name__}:none_of_a_number"}
    with pytest.raises(InputError, match=r"none_of_a_number returned nan for the answer 'b{80}…'"):
        judge(own, ["a", "b" * 100])


def by_length(prompts: list[str], completions: list[str], references: list[str | None]) -> list[int]:
    return [len(completion) for completion in completions]


def too_many(prompts: list[str], completions: list[str], references: list[str | None]) -> list[int]:
    return [0, 1]


def test_the_odds_are_those_of_the_formula_also_at_both_ends() -> None:
    better, worse = torch.tensor([-0.1, -2.0, -1e-9]).double(), torch.tensor([-1.0, -1.5, -30.0]).double()
    expected = torch.logit(better.exp()) - torch.logit(worse.exp())
    assert torch.allclose(odds_ratio(better, worse), expected, rtol=1e-6)


class Journal:
    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def event(self, *fields: Any) -> None:
        self.events.append(fields)


def training_data(kind: str, rows: list[dict[str, Any]], **training: Any) -> tuple[Any, Journal]:
    """The rows as the trainer of a kind takes them, and what the journal was told."""
    base = {"model": {"source": {"identifier": BUILTIN}}, "data": {"path": "rows"}, "training": training}
    rewards = {"rewards": [{"type": "length", "max_tokens": 4}]} if kind in {"grpo", "rloo"} else {}
    spec = load_task_spec({"taskType": kind, **base, **rewards})
    journal = Journal()
    method = {"kto": KtoMethod, "grpo": GrpoMethod}[kind](SimpleNamespace(spec=spec, journal=journal))  # type: ignore[abstract,arg-type]
    encoder = Encoder(load_tokenizer(Source(BUILTIN, str(assets.locate(BUILTIN, "model")))))
    found: Any = SimpleNamespace(train=rows, origin="rows", held_out=None)
    return method.tokenize(found, encoder, 64).train, journal


def test_prompts_that_do_not_fill_a_step_are_refused_and_those_that_are_left_over_are_told() -> None:
    rows, steps = [{"prompt": text} for text in "abcde"], {"batch_size": 8, "num_generations": 4, "max_steps": 2}
    train, journal = training_data("grpo", rows, **steps)
    assert len(train) == 5
    assert [(name, data) for name, _, _, data in journal.events] == [
        ("data.incomplete_step", {"prompts": 5, "left_out": 1})
    ]
    assert training_data("grpo", rows[:4], **steps)[1].events == []
    with pytest.raises(DataError, match=r"A step needs 4 prompts .* rows has 3 usable prompts\. Add prompts"):
        training_data("grpo", rows[:3], gradient_accumulation_steps=2, **steps)


def test_every_prompt_gets_an_answer_of_another_also_in_a_batch_of_one() -> None:
    rows = [{"prompt": text, "completion": text * 3, "label": True} for text in "abcde"]
    train, _ = training_data("kto", rows, batch_size=4)
    assert sorted(train["KL_completion_ids"]) == sorted(train["completion_ids"])
    assert all(row["KL_completion_ids"] != row["completion_ids"] for row in train)
    with pytest.raises(DataError, match="rows has only one usable row"):
        training_data("kto", rows[:1])


def test_a_prompt_loses_its_beginning_and_an_answer_its_end() -> None:
    limits = Limits(whole=5, prompt=3)
    assert limits.cut([1, 2, 3, 4], [[5, 6, 7], [8]]) == ([2, 3, 4], [[5, 6], [8]])
    assert limits.cut([1], [[2], []]) is None
    assert Limits(whole=3).cut([1, 2, 3], [[4]]) is None
    assert (limits.counts.rows, limits.counts.dropped, limits.counts.truncated, limits.counts.tokens) == (1, 1, 1, 9)


def test_a_message_of_the_user_in_an_answer_is_refused() -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "thx"}]
    with pytest.raises(DataError, match="Row 1 of rows: an answer contains a user message"):
        training_data("kto", [{"messages": chat, "label": True}] * 2)
